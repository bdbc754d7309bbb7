"""`rgat train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rgat.cli.options import OptionalDataName, SmilesColumn, grouped
from rgat.cli.printing import print_line, print_table, step_bars

if TYPE_CHECKING:
    from rgat.experiments.train import Trained


@dataclass(frozen=True)
class GraphFiles:
    """A person's own knowledge graph; the fields are named after those of `rgat.predictor.files.read`."""

    rdf: Annotated[list[Path] | None, typer.Option(help="Your graph: an RDF file; repeat for several.")] = None
    labels: Annotated[Path | None, typer.Option(help="TSV or CSV of nodes and their classes.")] = None
    test_labels: Annotated[
        Path | None, typer.Option(help="The same for the test part; without it a fifth of --labels.")
    ] = None
    node_column: Annotated[str | None, typer.Option(help="Column of the nodes; default: the first.")] = None
    label_column: Annotated[str | None, typer.Option(help="Column of the classes; default: the last.")] = None
    label_predicate: Annotated[
        str | None, typer.Option(help="Instead of --labels: the IRI that says the class; its triples leave the graph.")
    ] = None
    drop_predicates: Annotated[
        list[str] | None, typer.Option("--drop", help="IRI of a predicate to leave out; repeat for several.")
    ] = None
    features: Annotated[str | None, typer.Option(help="Of types,degrees,literals: to judge nodes added later.")] = None
    skip_unknown: Annotated[bool, typer.Option("--skip-unknown", help="Drop labels of unknown nodes.")] = False


@dataclass(frozen=True)
class MoleculeFile:
    """A person's own molecules; the fields are named after those of `rgat.predictor.files.read`."""

    smiles: Annotated[Path | None, typer.Option(help="Your molecules: CSV of SMILES and 0/1 columns.")] = None
    smiles_column: SmilesColumn = None
    tasks: Annotated[list[str] | None, typer.Option(help="Columns to learn; default: all of 0, 1.")] = None
    thresholds: Annotated[
        list[str] | None, typer.Option("--threshold", help="COLUMN=VALUE: numbers from VALUE on count as positive.")
    ] = None
    split: Annotated[str, typer.Option(help="Of molecules: random or scaffold.")] = "random"
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Drop rows that are no SMILES.")] = False
    relaxed: Annotated[bool, typer.Option("--relaxed", help="Accept unusual valences.")] = False


@dataclass(frozen=True)
class FitOptions:
    """Options of `rgat.fit` that are neither of the model nor of its training."""

    search: Annotated[int, typer.Option(min=0, help="Try so many configurations first.")] = 0
    ensemble: Annotated[int, typer.Option(min=1, help="Train so many models, and average.")] = 1
    comparison: Annotated[bool, typer.Option(help="Also train what the model has to beat.")] = True
    seed: Annotated[int, typer.Option(help="Of parameters, dropout, batches and splits.")] = 0


@dataclass(frozen=True)
class ModelOptions:
    """Options of the model and its training, named as in a configuration; None where an option is not given."""

    model: Annotated[str | None, typer.Option(help="RGCN, or additive or multiplicative WIRGAT or ARGAT.")] = None
    max_epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="At most so many.")] = None
    patience: Annotated[int | None, typer.Option(min=1, help="Epochs without improvement until the end.")] = None
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam.")] = None
    batch_size: Annotated[int | None, typer.Option(min=1, help="Graphs per step, over all processes.")] = None
    hidden_channels: Annotated[
        int | None, typer.Option("--hidden", min=1, help="Units of a relational layer, over all heads.")
    ] = None
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads.")] = None
    num_bases: Annotated[
        int | None, typer.Option("--bases", min=1, help="Bases of the kernels; default: full kernels.")
    ] = None
    batch_norm: Annotated[bool | None, typer.Option(help="Normalise the relational layers.")] = None
    feature_dropout: Annotated[float | None, typer.Option(help="Rate, in training.")] = None
    edge_dropout: Annotated[float | None, typer.Option(help="Rate, in training.")] = None
    kernel_l2: Annotated[float | None, typer.Option("--l2", help="Coefficient of the squared kernels.")] = None


@grouped
def train(
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    graph: GraphFiles,
    molecules: MoleculeFile,
    fitting: FitOptions,
    options: ModelOptions,
    data: OptionalDataName = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with model and settings.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of model or training; repeat.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Of a data set by name: go on from its checkpoint.")] = False,
) -> None:
    """Train a model on your own files, or on a data set by name, and keep it.

    \b
    Examples:
      rgat train --rdf dump.nt.gz --labels labels.tsv --node-column person --label-column group --out model
      rgat train --rdf dump.ttl --label-predicate http://example.org/group --features types,literals --out model
      rgat train --smiles assays.csv --threshold IC50=10 --ensemble 3 --out model
      rgat train aifb --out runs/aifb --hidden 16 --l2 0.0005 --resume
      torchrun --nproc-per-node 2 -m rgat train tox21 --out runs/tox21 --heads 4
    """
    from rgat.predictor import files as own_data

    flags = asdict(options)
    flags["kernel_l2_1"] = flags["kernel_l2_2"] = flags.pop("kernel_l2")
    configuration = own_data.given_options(config, option or (), **flags)
    files = asdict(graph) | asdict(molecules)
    files["drop_predicates"] = graph.drop_predicates or ()
    files["features"] = tuple(graph.features.split(",")) if graph.features else ()
    files["thresholds"] = own_data.read_thresholds(molecules.thresholds or ())
    has_files = bool(graph.rdf or molecules.smiles)
    with own_data.held_folder(out):
        if data is not None and not has_files and fitting.ensemble == 1 and not fitting.search:
            own_data.refuse_foreign("name", files)
            _train_by_name(data, configuration, fitting, out, resume)
        else:
            own_data.refuse({"--resume": resume}, "one model of a data set by name, without --search")
            _fit(data, files, configuration, fitting, out)


def _train_by_name(data: str, configuration: dict[str, Any], fitting: FitOptions, out: Path, resume: bool) -> None:
    """Train one model with checkpoints, save it and print its scores."""
    from rgat.predictor import files as own_data

    trained = own_data.train_by_name(data, out, configuration, fitting.seed, resume)
    if trained is None:  # the first process of `torchrun` saves and prints
        return
    with step_bars() as progress:
        fitted = own_data.keep_trained(*trained, out, fitting.seed, fitting.comparison, progress)
    _print_trained(trained[0])
    _print_fitted(fitted, out)


def _fit(
    data: str | None, files: dict[str, Any], configuration: dict[str, Any], fitting: FitOptions, out: Path
) -> None:
    """Fit a predictor to files or to a data set by name, save it and print its scores."""
    from rgat.predictor import files as own_data

    own_data.check_given("node" if files["rdf"] else "graph" if files["smiles"] else None, configuration)
    if files["rdf"] and not files["smiles"]:
        batch_size = {"--batch-size": configuration.get("batch_size")}
        own_data.refuse(batch_size, "molecules; a graph is trained on as a whole")
    read = own_data.read(data, seed=fitting.seed, **files)
    for line in own_data.describe(read):
        print_line(line)
    print_line(own_data.forecast(read, **asdict(fitting), **configuration))
    with step_bars() as progress:
        save = lambda fitted: fitted.save(out)
        fitted = own_data.fit(read, progress=progress, keep=save, **asdict(fitting), **configuration)
    fitted.save(out)
    _print_fitted(fitted, out)


def _print_trained(trained: Trained) -> None:
    result = trained.result
    parts = ("train", "valid", "test")
    rows = [
        (name, *(f"{100 * scores[part]:.1f}" for part in parts))
        for name, scores in (("attention", result.scores), ("constant attention", result.constant_scores))
    ]
    print_table((result.metric, *parts), rows)
    print_line(
        f"{trained.data}\nBest epoch by validation: {result.best_epoch} of {len(result.curve)}; "
        f"{result.seconds:.1f} s; {result.how}."
    )


def _print_fitted(fitted: Any, out: Path) -> None:
    from rgat.predictor.text import comparison_rows, performance

    rows, notes = comparison_rows(fitted)
    print_table((f"{fitted.report['metric']}, %", "train", "test"), rows)
    for line in (*performance(fitted), *notes, f"The model is in {out}; use it with `rgat predict {out}`."):
        print_line(line)
