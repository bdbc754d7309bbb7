"""`rgat train`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from rgat.cli import printing
from rgat.cli.options import GraphOptions, OptionalDataName, SmilesColumn, grouped
from rgat.cli.printing import print_class_tables, print_line, print_table, show_stages

if TYPE_CHECKING:
    from rgat.data import GraphData, NodeData
    from rgat.predictor.predictor import Predictor


@dataclass(frozen=True)
class GraphFiles:
    """A person's own knowledge graph."""

    rdf: Annotated[
        list[Path] | None, Option(metavar="FILE", help="RDF file of your graph, repeat for several; or a store.")
    ] = None


@dataclass(frozen=True)
class MoleculeFile:
    """A person's own molecules; the fields are named after those of `rgat.predictor.files.read`."""

    smiles: Annotated[
        Path | None, Option(metavar="FILE", help="CSV of SMILES and columns to learn, or SDF with properties.")
    ] = None
    smiles_column: SmilesColumn = None
    tasks: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Column to learn; repeat.  [default: all 0/1 columns, or the one of numbers]"),
    ] = None
    thresholds: Annotated[
        list[str] | None,
        Option("--threshold", metavar="COLUMN=VALUE", help="Count values of at least VALUE as positive."),
    ] = None
    relaxed: Annotated[bool, Option("--relaxed", help="Accept unusual valences.")] = False
    fragments: Annotated[
        str, Option(metavar="WORD", help="Of salts and mixtures: keep all fragments, or the largest.")
    ] = "keep"


@dataclass(frozen=True)
class TaskOptions:
    """What both kinds of data have; the fields are arguments of `rgat.data.from_rdf` and `rgat.data.from_smiles`."""

    task: Annotated[
        list[str] | None,
        Option(
            metavar="KIND",
            help="binary, multi-class, multi-label or regression; or COLUMN=KIND, repeat.  [default: by the cells]",
        ),
    ] = None
    censored: Annotated[bool, Option("--censored", help="Read cells such as >10 as bounds of a number.")] = False
    split: Annotated[
        str | None,
        Option(
            metavar="KIND",
            help="random, stratified, scaffold (of molecules) or, by --split-column, time, group or column (words).  "
            "[default: random for molecules, stratified for nodes]",
        ),
    ] = None
    skip_invalid: Annotated[
        bool, Option("--skip-invalid", help="Drop invalid RDF lines, or rows with invalid SMILES.")
    ] = False


@dataclass(frozen=True)
class FitOptions:
    """Options of `rgat.fit` that are neither of the model nor of its training."""

    search: Annotated[int, Option(min=0, metavar="N", help="Trials of a search on validation data.")] = 0
    minutes: Annotated[
        float | None, Option(metavar="M", help="Search on validation data, and end after M minutes.")
    ] = None
    ensemble: Annotated[
        int | None,
        Option(min=1, metavar="N", help="Models to train and average.  [default: 1, of few molecules 3]"),
    ] = None
    comparison: Annotated[bool, Option(help="Compare inputs, models and simpler systems.")] = True
    folds: Annotated[
        int, Option(min=0, metavar="N", help="Also fit N times, each fold the test part once: mean and spread.")
    ] = 0
    descriptors: Annotated[
        str,
        Option(
            metavar="KIND", help="Beside the graph of a molecule: none, rdkit, morgan, both or, by validation, auto."
        ),
    ] = "auto"
    freeze: Annotated[bool, Option("--freeze", help="Leave the relational layers of --from as they are.")] = False
    seed: Annotated[int, Option(metavar="N", help="Random seed of parameters, dropout, batches and splits.")] = 0
    device: Annotated[
        str | None,
        Option(metavar="NAME", help="Where to train: cpu, cuda or cuda:1.  [default: a GPU if there is one]"),
    ] = None


@dataclass(frozen=True)
class ModelOptions:
    """Options of the model and its training, named as in a configuration; None where an option is not given."""

    model: Annotated[
        str | None, Option(metavar="NAME", help="RGCN, or additive or multiplicative WIRGAT or ARGAT.")
    ] = None
    max_epochs: Annotated[int | None, Option("--epochs", min=1, metavar="N", help="Largest number of epochs.")] = None
    patience: Annotated[int | None, Option(min=1, metavar="N", help="Stop after N epochs without improvement.")] = None
    learning_rate: Annotated[float | None, Option(metavar="RATE", help="Learning rate of Adam.")] = None
    batch_size: Annotated[
        int | None, Option(min=1, metavar="N", help="Graphs per step, or nodes of a sampled graph.")
    ] = None
    fanouts: Annotated[
        str | None,
        Option(metavar="N,N", help="Sample at most N edges per node and relation, one N per layer; -1: all."),
    ] = None
    embedding_channels: Annotated[
        int | None,
        Option("--embedding", min=1, metavar="N", help="Learn N channels per node, instead of one-hot input."),
    ] = None
    num_layers: Annotated[int | None, Option("--layers", min=1, metavar="N", help="Relational layers.")] = None
    validate_every: Annotated[int | None, Option(min=1, metavar="N", help="Epochs between validations.")] = None
    hidden_channels: Annotated[
        int | None, Option("--hidden", min=1, metavar="N", help="Units of a relational layer, over all heads.")
    ] = None
    heads: Annotated[int | None, Option(min=1, metavar="N", help="Attention heads.")] = None
    num_bases: Annotated[
        int | None, Option("--bases", min=1, metavar="N", help="Bases of the kernels.  [default: full kernels]")
    ] = None
    batch_norm: Annotated[bool | None, Option(help="Apply batch normalisation to relational layers.")] = None
    feature_dropout: Annotated[float | None, Option(metavar="RATE", help="Rate of feature dropout.")] = None
    edge_dropout: Annotated[float | None, Option(metavar="RATE", help="Rate of edge dropout.")] = None
    kernel_l2: Annotated[float | None, Option("--l2", metavar="RATE", help="Coefficient of squared kernels.")] = None


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Say how to go on if a person interrupts the training."""
    try:
        yield
    except KeyboardInterrupt:
        is_kept = out.is_dir() and any(path.suffix == ".safetensors" for path in out.rglob("*"))
        kept = f"continue from the last checkpoint in {out} with the same command and --resume"
        print_line(f"interrupted; {kept if is_kept else 'nothing is kept yet: start again with the same command'}")
        raise


@grouped
def train(
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder for the model.")],
    files: GraphFiles,
    graph: GraphOptions,
    molecules: MoleculeFile,
    targets: TaskOptions,
    fitting: FitOptions,
    options: ModelOptions,
    data: OptionalDataName = None,
    config: Annotated[Path | None, Option(metavar="FILE", help="TOML file with model and settings.")] = None,
    option: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="Any option of model or training; repeat.")
    ] = None,
    start_from: Annotated[
        Path | None, Option("--from", metavar="MODEL", help="Start from the relational layers of a model of molecules.")
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Continue the training that was interrupted in the folder.")
    ] = False,
) -> None:
    """Train a model on your own files, or on a data set by name.

    \b
    Examples:
      rgat train --rdf dump.nt.gz --labels labels.tsv --out model
      rgat train --rdf dump.ttl --label-predicate http://x.org/group --out model
      rgat train --smiles assays.csv --threshold IC50=10 --out model
      rgat train --smiles table.csv --task logS=regression --out model
      rgat train --rdf STORE --labels labels.tsv --fanouts 20,10 --out model
      rgat train --smiles assays.csv --minutes 10 --out model
      rgat train --smiles few.csv --from model --freeze --out tuned
      rgat train aifb --out runs/aifb --hidden 16 --l2 0.0005 --resume
      torchrun --nproc-per-node 2 -m rgat train tox21 --out runs/tox21
      torchrun --nproc-per-node 2 -m rgat train STORE --labels l.tsv --out model
    """
    from rgat.data import REGISTRY
    from rgat.predictor import files as own_data
    from rgat.predictor import load
    from rgat.predictor.dumps import read_within_memory
    from rgat.predictor.fold_results import resumed_sampling
    from rgat.predictor.stages import stage_names
    from rgat.training.configuration import check_options
    from rgat.training.distributed import connection, joined_processes, processes

    if data is not None and not files.rdf and data not in REGISTRY and Path(data).is_dir():  # a store
        files = replace(files, rdf=[Path(data)])
        data = None
    configuration = _configuration(options, config, option or ())
    check_options(configuration, "node" if files.rdf else "graph" if molecules.smiles else None)
    thresholds = own_data.read_thresholds(molecules.thresholds or ())
    given = asdict(files) | graph.arguments() | asdict(molecules) | {"thresholds": thresholds, "seed": fitting.seed}
    given |= asdict(targets) | {"task": own_data.read_task(targets.task or ())}
    given["features"], with_identity = own_data.read_features(graph.features, bool(files.rdf))
    configuration |= {"identity": True} if with_identity else {}
    start = None if start_from is None else load(start_from)
    asked_device = None if fitting.device is None else own_data.read_device(fitting.device)
    folder = own_data.held_folder(out, resume)
    with folder as is_resumed, joined_processes(asked_device) as device, resumable(out):
        printing.console.quiet = processes().rank > 0  # all processes run the same fit, and one prints
        if processes().number > 1:
            print_line(connection(device))
            print_line("They train one model together; inputs, models and simpler systems are not compared.")
        if is_resumed:
            configuration |= resumed_sampling(out, configuration)
        of_nodes, is_searched = molecules.smiles is None, bool(fitting.search or fitting.minutes)
        is_open = "model" not in configuration or given["features"] == "auto"
        has_choice = is_open if of_nodes else fitting.descriptors == "auto"
        fit_stages = stage_names(is_searched, of_nodes, fitting.comparison, has_choice)
        fit_stages += [own_data.FOLDS_STAGE] if fitting.folds else []
        with show_stages("reading", "estimate", *fit_stages, "saving") as stages:
            stages("reading")
            reading = given | {"resume": is_resumed, "say": print_line, "progress": stages}
            read, sampling = read_within_memory(data, out, configuration, device, **reading)
            asked = asdict(fitting) | {"device": device} | configuration | sampling
            asked |= {} if start is None else {"start_from": start}
            stages("estimate")
            _print_estimates(read, **asked)
            predictor = own_data.train(read, out, stages, **asked)
    _print_results(predictor, out)


def _configuration(options: ModelOptions, config: Path | None, more: Sequence[str]) -> dict[str, Any]:
    """Return the options of model and training that are given, those of the command line last."""
    from rgat.predictor import files as own_data

    flags = asdict(options) | {"fanouts": None if options.fanouts is None else own_data.read_fanouts(options.fanouts)}
    flags["kernel_l2_1"] = flags["kernel_l2_2"] = flags.pop("kernel_l2")
    return own_data.given_options(config, more, **flags)


def _print_estimates(data: NodeData | GraphData, **asked: Any) -> None:
    """Print what the data are, and how much time and memory a fit takes."""
    from rgat.predictor.estimates import forecast
    from rgat.predictor.inspection import LITERAL_COLUMNS, describe, literal_rows

    for line in describe(data):
        print_line(line)
    if rows := literal_rows(data):
        print_line("literals:")
        print_table(LITERAL_COLUMNS, rows, text_columns=2)
    print_line(forecast(data, **asked))


def _print_results(predictor: Predictor, out: Path) -> None:
    from rgat.predictor.target_text import target_tables
    from rgat.predictor.text import choice_table, class_tables, comparison_rows, contribution_table, performance

    tables = (*choice_table(predictor), *contribution_table(predictor), *target_tables(predictor))
    for title, columns, rows, texts in tables:
        print_line(title)
        print_table(columns, rows, texts)
    rows, notes = comparison_rows(predictor)
    print_table((f"{predictor.report['metric']}, %", "train", "test"), rows)
    print_class_tables(class_tables(predictor))
    searched = [predictor.report["searched"]] if "searched" in predictor.report else []
    place = f"The model is in {out}; use it with `rgat predict {out}`."
    for line in (*searched, *performance(predictor), *notes, place):
        print_line(line)
