"""`rgat train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rgat.cli import printing
from rgat.cli.options import OptionalDataName, SmilesColumn, grouped
from rgat.cli.printing import print_line, print_table, step_bars

if TYPE_CHECKING:
    from rgat.predictor.predictor import Predictor


@dataclass(frozen=True)
class GraphFiles:
    """A person's own knowledge graph; the fields are named after those of `rgat.predictor.files.read`."""

    rdf: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="RDF file of your graph, repeat for several; or a store.")
    ] = None
    labels: Annotated[Path | None, typer.Option(metavar="FILE", help="TSV or CSV of nodes and their classes.")] = None
    test_labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels of the test part.  [default: a fifth of --labels]")
    ] = None
    node_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the nodes.  [default: the first]")
    ] = None
    label_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the classes.  [default: the last]")
    ] = None
    label_predicate: Annotated[
        str | None,
        typer.Option(metavar="IRI", help="Predicate of the classes, instead of --labels; its triples are removed."),
    ] = None
    drop_predicates: Annotated[
        list[str] | None, typer.Option("--drop", metavar="IRI", help="Predicate to leave out; repeat for several.")
    ] = None
    features: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Node features: types, degrees, literals, or several of them with commas."),
    ] = None
    skip_unknown: Annotated[bool, typer.Option("--skip-unknown", help="Drop labels of unknown nodes.")] = False


@dataclass(frozen=True)
class MoleculeFile:
    """A person's own molecules; the fields are named after those of `rgat.predictor.files.read`."""

    smiles: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV of SMILES and columns of 0 and 1.")] = None
    smiles_column: SmilesColumn = None
    tasks: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Column to learn; repeat.  [default: all 0/1 columns]")
    ] = None
    thresholds: Annotated[
        list[str] | None,
        typer.Option("--threshold", metavar="COLUMN=VALUE", help="Count values of at least VALUE as positive."),
    ] = None
    split: Annotated[str, typer.Option(metavar="KIND", help="Split of the molecules: random or scaffold.")] = "random"
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Drop rows with invalid SMILES.")] = False
    relaxed: Annotated[bool, typer.Option("--relaxed", help="Accept unusual valences.")] = False


@dataclass(frozen=True)
class FitOptions:
    """Options of `rgat.fit` that are neither of the model nor of its training."""

    search: Annotated[int, typer.Option(min=0, metavar="N", help="Trials of a search on validation data.")] = 0
    ensemble: Annotated[int, typer.Option(min=1, metavar="N", help="Models to train and average.")] = 1
    comparison: Annotated[bool, typer.Option(help="Also train simpler systems on the same split.")] = True
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of parameters, dropout, batches and splits.")] = 0


@dataclass(frozen=True)
class ModelOptions:
    """Options of the model and its training, named as in a configuration; None where an option is not given."""

    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="RGCN, or additive or multiplicative WIRGAT or ARGAT.")
    ] = None
    max_epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, metavar="N", help="Largest number of epochs.")
    ] = None
    patience: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after N epochs without improvement.")
    ] = None
    learning_rate: Annotated[float | None, typer.Option(metavar="RATE", help="Learning rate of Adam.")] = None
    batch_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Graphs per step, over all processes.")] = (
        None
    )
    hidden_channels: Annotated[
        int | None, typer.Option("--hidden", min=1, metavar="N", help="Units of a relational layer, over all heads.")
    ] = None
    heads: Annotated[int | None, typer.Option(min=1, metavar="N", help="Attention heads.")] = None
    num_bases: Annotated[
        int | None, typer.Option("--bases", min=1, metavar="N", help="Bases of the kernels.  [default: full kernels]")
    ] = None
    batch_norm: Annotated[bool | None, typer.Option(help="Apply batch normalisation to relational layers.")] = None
    feature_dropout: Annotated[float | None, typer.Option(metavar="RATE", help="Rate of feature dropout.")] = None
    edge_dropout: Annotated[float | None, typer.Option(metavar="RATE", help="Rate of edge dropout.")] = None
    kernel_l2: Annotated[
        float | None, typer.Option("--l2", metavar="RATE", help="Coefficient of the squared kernels.")
    ] = None


@grouped
def train(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the model.")],
    graph: GraphFiles,
    molecules: MoleculeFile,
    fitting: FitOptions,
    options: ModelOptions,
    data: OptionalDataName = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with model and settings.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Any option of model or training; repeat.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the training that was interrupted in the folder.")
    ] = False,
) -> None:
    """Train a model on your own files, or on a data set by name.

    \b
    Examples:
      rgat train --rdf dump.nt.gz --labels labels.tsv --out model
      rgat train --rdf dump.ttl --label-predicate http://x.org/group --out model
      rgat train --smiles assays.csv --threshold IC50=10 --out model
      rgat train aifb --out runs/aifb --hidden 16 --l2 0.0005 --resume
      torchrun --nproc-per-node 2 -m rgat train tox21 --out runs/tox21
    """
    from rgat.data import NodeData
    from rgat.predictor import files as own_data
    from rgat.training.distributed import joined_processes, processes

    flags = asdict(options)
    flags["kernel_l2_1"] = flags["kernel_l2_2"] = flags.pop("kernel_l2")
    configuration = own_data.given_options(config, option or (), **flags)
    files = asdict(graph) | asdict(molecules)
    files["drop_predicates"] = graph.drop_predicates or ()
    files["features"] = tuple(graph.features.split(",")) if graph.features else ()
    files["thresholds"] = own_data.read_thresholds(molecules.thresholds or ())
    own_data.check_options(configuration, "node" if graph.rdf else "graph" if molecules.smiles else None)
    if graph.rdf and not molecules.smiles:
        own_data.refuse_batch_size(configuration)  # before files are read
    with own_data.held_folder(out, resume), joined_processes() as device:
        printing.console.quiet = processes().rank > 0  # all processes run the same fit, and one prints
        read = own_data.read(data, seed=fitting.seed, **files)
        if isinstance(read, NodeData):
            own_data.refuse_batch_size(configuration)
        for line in own_data.describe(read):
            print_line(line)
        asked = asdict(fitting) | {"device": device} | configuration
        print_line(own_data.forecast(read, **asked))
        with step_bars() as progress:
            predictor = own_data.train(read, out, progress=progress, **asked)
    _print_predictor(predictor, out)


def _print_predictor(predictor: Predictor, out: Path) -> None:
    from rgat.predictor.text import comparison_rows, performance

    rows, notes = comparison_rows(predictor)
    lines = [*performance(predictor), *notes]
    if len(predictor.members) == 1:
        (member,) = predictor.report["training"]
        scores = [member["constant_scores"][part] for part in ("train", "test")]
        if predictor.config["model"] != "RGCN":
            row = ("constant attention", *("-" if score is None else f"{100 * score:.1f}" for score in scores))
            rows.insert(1, row)
        chosen_by = "cross-validation" if member["scores"]["valid"] is None else "validation"
        lines.append(f"Best epoch by {chosen_by}: {member['best_epoch']} of {member['epochs']}; {member['how']}.")
    print_table((f"{predictor.report['metric']}, %", "train", "test"), rows)
    for line in (*lines, f"The model is in {out}; use it with `rgat predict {out}`."):
        print_line(line)
