"""The command line: parse, call one function, print."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ImportError as error:  # pragma: no cover
    raise SystemExit(
        f"the command line needs typer and rich ({error}); install them with `pip install rgat`"
    ) from error

if TYPE_CHECKING:
    from rgat.experiments.records import Record

app = typer.Typer(
    help="Learn from relational graphs: relational graph attention networks and their relatives.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
console = Console()
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # of wrong options and commands; typer has no name of its own for it

QUESTIONS = {
    "institute": "To which of four groups does a person of a made-up institute belong?",
    "molecules": "Which of six patterns does a molecule contain?",
    "planted-needle": "One of eight witnesses of the same relation knows. A mean cannot tell which.",
    "planted-rivals": "One of eight witnesses, each of its own relation, knows: let relations compete.",
    "planted-consensus": "Most of eight witnesses know. A mean is enough.",
}


def _version(asked: bool) -> None:
    if asked:
        from rgat.version import __version__

        print(f"rgat {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A data set to run; repeat for several. Default: institute, molecules, planted-*."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often each model is trained.")] = 3,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for records and report; what an earlier demo left there is replaced.")
    ] = Path("rgat-demo"),
) -> None:
    """Train RGCN and the four RGAT variants on built-in data, compare them, and write a report to open in a browser.

    \b
    Examples:
      rgat demo                                     all five sets
      rgat demo --set planted-needle --seeds 10     one set, ten seeds
    """
    from rgat.data import load
    from rgat.experiments.compare import SETUPS, compare
    from rgat.experiments.variants import VARIANTS
    from rgat.report import check_libraries, write_report

    check_libraries()
    names = list(dict.fromkeys(sets or SETUPS))
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs,"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(TextColumn("training"), *columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(names) * len(VARIANTS) * seeds)
        advance = lambda run: progress.advance(bar)
        runs = compare(names, seeds=seeds, workers=workers, out=out / "records", on_run=advance)
    with console.status("writing the report"):
        page = write_report([out / "records" / name for name in names], out / "report")
    for name in names:
        console.print(f"\n[bold]{name}[/bold]. {QUESTIONS[name]}")
        console.print(str(load(name)), style="dim", highlight=False)
        console.print(_table([run for run in runs if run["data"] == name]))
    console.print(
        f"\nMean ± standard deviation over {seeds} seeds, in %. The epoch is chosen on validation data alone. The last "
        "column is the same trained model, tested with all attention coefficients of a group set equal: where it falls "
        "below the test column, the model does use its attention.",
        highlight=False,
    )
    _say_where(page)


def _say(text: str) -> None:
    """Print a line as it is: names of people's own may hold brackets, and paths are copied."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _say_where(page: Path) -> None:
    _say(f"\nThe report, to open in a browser: {page.resolve()}")


def _table(runs: list[Record]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("mean ROC-AUC" if "task_scores" in runs[0] else "accuracy")
    shown = ("train", "valid", "test", "constant") if console.width >= 76 else ("test", "constant")
    for column in shown:
        table.add_column(column, justify="right", no_wrap=True)
    for model in dict.fromkeys(run["model"] for run in runs):
        mine = [run for run in runs if run["model"] == model and run["status"] == "done"]
        columns = [[run["scores"][part] for run in mine] for part in ("train", "valid", "test")]
        columns.append([run["constant_scores"]["test"] for run in mine if run["constant_scores"]])
        table.add_row(model, *[_mean_and_spread(values) for values in columns][-len(shown) :])
    return table


def _mean_and_spread(values: list[float]) -> str:
    if not values:
        return "-"  # an RGCN's attention is constant anyway; or no run ended well
    percent = [100 * value for value in values]
    spread = f" ±{statistics.stdev(percent):4.1f}" if len(percent) > 1 else ""
    return f"{statistics.mean(percent):.1f}{spread}"


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    data: Annotated[str | None, typer.Argument(help="A data set, as `rgat data list` shows them.")] = None,
    rdf: Annotated[list[Path] | None, typer.Option(help="Your graph: an RDF file; repeat for several.")] = None,
    labels: Annotated[Path | None, typer.Option(help="TSV or CSV of nodes and their classes.")] = None,
    test_labels: Annotated[
        Path | None, typer.Option(help="The same for the test part; without it a fifth of --labels.")
    ] = None,
    node_column: Annotated[str | None, typer.Option(help="Column of the nodes; default: the first.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the classes; default: the last.")] = None,
    label_predicate: Annotated[
        str | None, typer.Option(help="Instead of --labels: the IRI that says the class; its triples leave the graph.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="IRI of a predicate to leave out; repeat for several.")] = None,
    features: Annotated[str | None, typer.Option(help="Of types,degrees,literals: to judge nodes added later.")] = None,
    skip_unknown: Annotated[bool, typer.Option("--skip-unknown", help="Drop labels of unknown nodes.")] = False,
    smiles: Annotated[Path | None, typer.Option(help="Your molecules: CSV of SMILES and 0/1 columns.")] = None,
    smiles_column: Annotated[str | None, typer.Option(help="Column of the SMILES; default: smiles.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Columns to learn; default: all of 0, 1.")] = None,
    threshold: Annotated[
        list[str] | None, typer.Option(help="COLUMN=VALUE: numbers from VALUE on count as positive.")
    ] = None,
    split: Annotated[str, typer.Option(help="Of molecules: random or scaffold.")] = "random",
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Drop rows that are no SMILES.")] = False,
    relaxed: Annotated[bool, typer.Option("--relaxed", help="Accept unusual valences.")] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file with model and settings.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of model or training; repeat.")] = None,
    search: Annotated[int, typer.Option(min=0, help="Try so many configurations first.")] = 0,
    ensemble: Annotated[int, typer.Option(min=1, help="Train so many models, and average.")] = 1,
    comparison: Annotated[bool, typer.Option(help="Also train what the model has to beat.")] = True,
    model: Annotated[str | None, typer.Option(help="RGCN, or additive or multiplicative WIRGAT or ARGAT.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    patience: Annotated[int | None, typer.Option(min=1, help="Epochs without improvement until the end.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Graphs per step, over all processes.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Units of a relational layer, over all heads.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads.")] = None,
    bases: Annotated[int | None, typer.Option(min=1, help="Bases of the kernels; default: full kernels.")] = None,
    batch_norm: Annotated[bool | None, typer.Option(help="Normalise the relational layers.")] = None,
    feature_dropout: Annotated[float | None, typer.Option(help="Rate, in training.")] = None,
    edge_dropout: Annotated[float | None, typer.Option(help="Rate, in training.")] = None,
    l2: Annotated[float | None, typer.Option(help="Coefficient of the squared kernels.")] = None,
    seed: Annotated[int, typer.Option(help="Of parameters, dropout, batches and splits.")] = 0,
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

    given = own_data.given_options(
        config,
        option or (),
        model=model,
        max_epochs=epochs,
        patience=patience,
        learning_rate=learning_rate,
        batch_size=batch_size,
        hidden_channels=hidden,
        heads=heads,
        num_bases=bases,
        batch_norm=batch_norm,
        feature_dropout=feature_dropout,
        edge_dropout=edge_dropout,
        kernel_l2_1=l2,
        kernel_l2_2=l2,
    )
    about: dict[str, Any] = {
        "labels": labels,
        "test_labels": test_labels,
        "node_column": node_column,
        "label_column": label_column,
        "label_predicate": label_predicate,
        "drop_predicates": drop or (),
        "features": tuple(features.split(",")) if features else (),
        "skip_unknown": skip_unknown,
        "smiles_column": smiles_column,
        "tasks": tasks,
        "thresholds": own_data.read_thresholds(threshold or ()),
        "split": split,
        "skip_invalid": skip_invalid,
        "relaxed": relaxed,
    }
    with own_data.held_folder(out):
        if data is not None and not (rdf or smiles) and ensemble == 1 and not search:
            own_data.refuse_foreign("name", about)
            found = own_data.train_by_name(data, out, given, seed, resume)
            if found is not None:  # else another process speaks
                with _progress() as advance:
                    fitted = own_data.keep_trained(*found, out, seed, comparison, advance)
                _print_trained(found[0])
                _print_fitted(fitted, out)
            return
        own_data.refuse({"--resume": resume}, "one model of a data set by name, without --search")
        own_data.check_given("node" if rdf else "graph" if smiles else None, given)
        if rdf and not smiles:
            own_data.refuse({"--batch-size": given.get("batch_size")}, "molecules; a graph is trained on as a whole")
        read = own_data.read(data, rdf=rdf, smiles=smiles, seed=seed, **about)
        for line in own_data.describe(read):
            _say(line)
        asked: dict[str, Any] = {"ensemble": ensemble, "search": search, "seed": seed, "comparison": comparison}
        _say(own_data.forecast(read, **asked, **given))
        with _progress() as advance:
            fitted = own_data.fit(read, progress=advance, keep=lambda fitted: fitted.save(out), **asked, **given)
        fitted.save(out)
        _print_fitted(fitted, out)


@contextmanager
def _progress() -> Iterator[Any]:
    """A function to call with what is being done and the share that is done."""
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console) as bar:
        shown: dict[str, Any] = {}

        def advance(what: str, share: float) -> None:
            if what not in shown:
                shown[what] = bar.add_task(what, total=1.0)
            bar.update(shown[what], completed=share)

        yield advance


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> None:
    """A table whose first columns are text and whose others are numbers."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < texts else "right", overflow="fold", no_wrap=place >= texts)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table, highlight=False)


def _print_trained(trained: Any) -> None:
    result = trained.result
    parts = ("train", "valid", "test")
    rows = [
        (name, *(f"{100 * scores[part]:.1f}" for part in parts))
        for name, scores in (("attention", result.scores), ("constant attention", result.constant_scores))
    ]
    _print_rows((result.metric, *parts), rows)
    _say(
        f"{trained.data}\nBest epoch by validation: {result.best_epoch} of {len(result.curve)}; "
        f"{result.seconds:.1f} s; {result.how}."
    )


def _print_fitted(fitted: Any, out: Path) -> None:
    from rgat.predictor.text import comparison_rows, performance

    rows, notes = comparison_rows(fitted)
    _print_rows((f"{fitted.report['metric']}, %", "train", "test"), rows)
    for line in (*performance(fitted), *notes, f"The model is in {out}; use it with `rgat predict {out}`."):
        _say(line)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Folder that `rgat train` wrote.")],
    out: Annotated[Path | None, typer.Option(help="File: .csv or .tsv; triples of nodes: .nt.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="A node to judge; repeat for several.")] = None,
    nodes: Annotated[Path | None, typer.Option(help="A file with a node per line.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="Judge all unlabelled nodes of this type.")] = None,
    rdf: Annotated[list[Path] | None, typer.Option(help="Triples added since training.")] = None,
    predicate: Annotated[str | None, typer.Option(help="IRI of the triples in an .nt file.")] = None,
    smiles: Annotated[str | None, typer.Option(help="A file of molecules, or one SMILES.")] = None,
    smiles_column: Annotated[str | None, typer.Option(help="Column of the SMILES; default: smiles.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that read SMILES.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted file of molecules.")] = False,
) -> None:
    """Judge unlabelled nodes, or new molecules.

    \b
    Examples:
      rgat predict model --out predictions.csv
      rgat predict model --node http://example.org/ada
      rgat predict model --rdf new.nt --out predictions.nt --predicate http://example.org/group
      rgat predict model --smiles library.smi --out predictions.csv --resume
    """
    from rgat.predictor import files as own_data
    from rgat.predictor.text import prediction_rows

    fitted = own_data.load(model)
    with _progress() as advance:
        found, notes = own_data.predict(
            fitted,
            out,
            nodes=own_data.read_nodes(node or (), nodes),
            kind=kind,
            rdf=rdf,
            predicate=predicate,
            smiles=smiles,
            smiles_column=smiles_column,
            workers=workers,
            resume=resume,
            progress=advance,
        )
    if out is None and found is not None:
        _print_rows(*prediction_rows(found), texts=2)
    for line in notes:
        _say(line)


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help="Folder that `rgat train` wrote.")],
    node: Annotated[str | None, typer.Option(help="A node; without one: relations of the whole graph.")] = None,
    smiles: Annotated[str | None, typer.Option(help="A molecule.")] = None,
    task: Annotated[str | None, typer.Option(help="Of a molecule; default: the most probable.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to show; with --json of a node alone.")] = 15,
    by: Annotated[str, typer.Option(help="Order of the edges: strength, attention or effect.")] = "strength",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    page: Annotated[Path | None, typer.Option("--html", help="Write a page to explore in a browser.")] = None,
) -> None:
    """Say why: attention, and what happens without an edge, an atom or a bond.

    \b
    Examples:
      rgat explain model --node http://example.org/ada --html ada.html
      rgat explain model                        importance of relations
      rgat explain model --smiles CCO --json
    """
    import json

    from rgat.predictor import files as own_data

    fitted = own_data.load(model)
    found = own_data.explain(fitted, node=node, smiles=smiles, task=task, top=top, by=by, page=page)
    if as_json:
        print(json.dumps(found.as_json(), ensure_ascii=False))
        return
    sentences, columns, rows, texts = own_data.told(found, top, wide=console.width >= 108)
    for line in sentences:
        _say(line)
    _print_rows(columns, rows, texts)
    if page is not None:
        _say(f"Open {page} in a browser.")


data_app = typer.Typer(help="Data sets by name.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list() -> None:
    """List the data sets that have a name, and whether their files are here."""
    from rgat.data import BENCHMARKS, REGISTRY
    from rgat.data.benchmarks.registry import locate

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("name", "what", "files"):
        table.add_column(column)
    for name in REGISTRY:
        if name in BENCHMARKS:
            counts = ", ".join(f"{number:,} {what}" for what, number in BENCHMARKS[name].counts.items())
            here = len(locate(name)) == len(BENCHMARKS[name].files)
            table.add_row(name, counts, "here" if here else f"rgat data fetch {name}")
        else:
            table.add_row(name, "built in", "made when needed")
    console.print(table, highlight=False)


@data_app.command("stats")
def data_stats(
    name: Annotated[str, typer.Argument(help="A data set, as `rgat data list` shows them.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    split: Annotated[int | None, typer.Option(help="Seed of the split, for Tox21.")] = None,
) -> None:
    """Count what a data set holds, as given and as a layer sees it.

    \b
    Examples:
      rgat data stats aifb
      rgat data stats tox21-distinct --split 123 --json
    """
    import json

    from rgat.data import load, statistics

    if split is not None and not name.startswith("tox21"):
        raise ValueError(f"`--split` must be left out for {name}, whose split is fixed")
    numbers = statistics(load(name, **({} if split is None else {"split": split})))
    if as_json:
        print(json.dumps(numbers))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in numbers.items():
        if isinstance(value, dict):
            value = ", ".join(f"{_short(name)} {number:,}" for name, number in value.items())
        elif isinstance(value, float):
            value = f"{value:.3f}"
        elif isinstance(value, int):
            value = f"{value:,}"
        table.add_row(key.replace("_", " "), str(value))
    console.print(table, highlight=False)


def _short(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] if name.startswith("http") else name


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A benchmark, as `rgat data list` shows them.")]) -> None:
    """Download a benchmark to the cache folder unless it is here, and verify it.

    \b
    Example:
      rgat data fetch mutag
    """
    from rgat.data import BENCHMARKS
    from rgat.data.benchmarks.registry import fetch

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(TextColumn(name), *columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None)
        files = fetch(name, lambda received, total: progress.update(bar, completed=received, total=total))
    for file, path in files.items():
        checked = "SHA-256 verified" if BENCHMARKS[name].files[file] else "no published SHA-256 to compare with"
        _say(f"{path} ({checked})")


DataName = Annotated[str | None, typer.Argument(metavar="DATA", help="A data set, as `rgat data list` shows them.")]
Models = Annotated[
    list[str] | None, typer.Option(help="A model of the paper's tables; repeat, or join by commas. Default: all five.")
]
BudgetName = Annotated[
    str | None, typer.Option(help="How much: smoke, small (50 trials per model; the default) or paper (200 trials).")
]
Trials = Annotated[int | None, typer.Option(help="Trials of each model's search, in place of the budget's.")]
Seeds = Annotated[int | None, typer.Option(help="Final runs of each model, per split, in place of the budget's.")]
Folds = Annotated[int | None, typer.Option(help="Folds of the search: of five for nodes, of ten for graphs.")]
SearchSeed = Annotated[int | None, typer.Option(help="Seed of the search's draws.  [default: 0]")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file; options given here win over it.")]
Out = Annotated[Path, typer.Option(help="Where records go: into a folder named after the data set.")]
ExecutorName = Annotated[str, typer.Option(help="Who works: local (this process), processes, or ray.")]
Workers = Annotated[int | None, typer.Option(help="Processes; by default one per core.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster, host:port; without one Ray is started here.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Propose = Annotated[bool, typer.Option("--propose", help="Only write the next units of work for another machine.")]


@app.command()
def search(
    data: DataName = None,
    models: Models = None,
    budget: BudgetName = None,
    trials: Trials = None,
    folds: Folds = None,
    search_seed: SearchSeed = None,
    config: ConfigFile = None,
    out: Out = Path("runs"),
    executor: ExecutorName = "processes",
    workers: Workers = None,
    address: Address = None,
    device: Device = "cpu",
    propose: Propose = False,
    priors: Annotated[bool, typer.Option("--priors", help="Only print what the search draws from.")] = False,
) -> None:
    """Search hyper-parameters with the paper's priors, by cross-validation inside the training data; resumable.

    \b
    Examples:
      rgat search aifb --priors                         the paper's table of priors
      rgat search institute --budget smoke              three trials of each model on built-in data
      rgat search aifb --models RGCN --trials 50        one model
    """
    if priors:
        _print_priors(data)
        return
    asked = {"data": data, "models": models, "budget": budget, "trials": trials, "folds": folds}
    how = {"executor": executor, "workers": workers, "address": address, "device": device}
    _protocol(asked | {"search_seed": search_seed}, config, out, propose, search_only=True, **how)


@app.command()
def reproduce(
    data: DataName = None,
    models: Models = None,
    budget: BudgetName = None,
    trials: Trials = None,
    seeds: Seeds = None,
    folds: Folds = None,
    search_seed: SearchSeed = None,
    config: ConfigFile = None,
    out: Out = Path("runs"),
    executor: ExecutorName = "processes",
    workers: Workers = None,
    address: Address = None,
    device: Device = "cpu",
    propose: Propose = False,
    configs: Annotated[Path | None, typer.Option(help="Write the selected settings there, a TOML per model.")] = None,
) -> None:
    """Run the paper's protocol: search, select, retrain, evaluate. Call it again after any interruption: it goes on.

    \b
    Examples:
      rgat reproduce institute --budget smoke           a minute, on built-in data
      rgat reproduce aifb --budget small                50 trials and 200 seeds of each of the five models
      rgat reproduce tox21-distinct --models "multiplicative ARGAT" --trials 20
      rgat reproduce aifb --models "GGNN, dynamic WIRGAT, WL" --trials 20
      rgat reproduce mutag --executor ray --address 10.0.0.1:6379
      rgat reproduce --config configs/aifb/rgcn.toml    200 seeds of a setting selected before
    """
    asked = {"data": data, "models": models, "budget": budget, "trials": trials, "seeds": seeds, "folds": folds}
    asked["search_seed"] = search_seed
    how = {"executor": executor, "workers": workers, "address": address, "device": device}
    records = _protocol(asked, config, out, propose, search_only=False, **how)
    if records and configs is not None:
        from rgat.experiments.summary import write_configs

        for path in write_configs(records, configs, shlex.join(["rgat", *sys.argv[1:]])):
            _say(f"{path}")


def _protocol(
    asked: dict[str, Any],
    config: Path | None,
    out: Path,
    propose: bool,
    search_only: bool,
    **how: Any,
) -> list[dict[str, Any]]:
    from rgat.experiments.prepared import write_prepared
    from rgat.experiments.protocol import open_protocol, run_protocol
    from rgat.experiments.request import read_request

    others: list[str] = []
    if asked["models"]:
        names = [name.strip() for names in asked["models"] for name in names.split(",")]
        others = [] if search_only or propose else [name for name in names if _is_baseline(name)]
        asked["models"] = [name for name in names if name not in others]
        if others and not asked["models"]:
            return _run_baselines(others, asked["data"], asked["seeds"], out)
    wanted = {key: value for key, value in asked.items() if value is not None}
    protocol = open_protocol((read_request(config) if config else {}) | wanted, out)
    if propose:
        count = write_prepared(protocol, search_only)
        _say(f"{count} units to do in {protocol.folder}")
        return []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("records,"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(TextColumn(protocol.request.data), *columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None)
        show = lambda done, total: progress.update(bar, completed=done, total=total)
        records = run_protocol(protocol, search_only, on_progress=show, **how)
    console.print(_search_table(records) if search_only else _result_table(records), highlight=False)
    _say(f"Records are in {protocol.folder}.")
    if others:
        _run_baselines(others, protocol.request.data, asked["seeds"], out)
    return records


def _print_priors(data: str | None) -> None:
    from rgat.data import GraphData, load
    from rgat.experiments.priors import PRIORS

    if data is None:
        raise ValueError("`DATA` must name a data set, got nothing; `rgat data list` shows those there are")
    table = Table(box=None, pad_edge=False)
    for column in ("hyper-parameter", "prior", "option", "RGCN"):
        table.add_column(column)
    for option, row in PRIORS["graph" if isinstance(load(data), GraphData) else "node"].items():
        table.add_row(row.words, str(row.prior), option, "-" if row.of_attention else "yes")
    console.print(table, highlight=False)


def _search_table(records: list[dict[str, Any]]) -> Table:
    from rgat.experiments.search import select

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("model", "trials", "not done", "best", "trial"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for model in dict.fromkeys(record["model"] for record in records):
        trials = [record for record in records if record["model"] == model and record["kind"] == "trial"]
        best = select(trials)
        lost = sum(record["status"] != "done" for record in trials)
        table.add_row(model, str(len(trials)), str(lost), f"{100 * best['objective']:.1f}", str(best["trial"]))
    return table


def _result_table(records: list[dict[str, Any]]) -> Table:
    from rgat.experiments.summary import summarise

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("model", "runs", "test", "constant", "paper"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for row in summarise(records):
        shown = [f"{100 * s.mean:.1f} ±{100 * s.spread:.1f}" if s else "-" for s in (row.test, row.constant, row.paper)]
        table.add_row(row.model, f"{row.runs}" + (f" ({row.lost} lost)" if row.lost else ""), *shown)
    return table


@app.command()
def baseline(
    name: Annotated[str, typer.Argument(help="A system of the paper's tables, such as WL or Weave; or all.")],
    data: Annotated[str, typer.Argument(help="A data set, as `rgat data list` shows them.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each system, on Tox21 of each split.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the records; those that are there are not made again.")] = Path(
        "runs"
    ),
) -> None:
    """Train the paper's other systems and write records for `rgat report`.

    \b
    Nodes:   FEAT, WL, RDF2Vec, R-GCN
    Graphs:  Multitask, Bypass, Weave, GraphConv, logistic-regression, random-forest, kernel-SVM

    \b
    Examples:
      rgat baseline WL mutag                     one system
      rgat baseline all aifb --seeds 10          all that fit the data, ten runs each
      rgat baseline Weave tox21 --seeds 1        three splits, one run each
    """
    _run_baselines([name], data, seeds, out)


def _is_baseline(name: str) -> bool:
    """Whether a name is that of one of the other systems, in any spelling that is not a model's."""
    from rgat.experiments.baseline_runs import is_baseline
    from rgat.experiments.variants import ALL_VARIANTS

    return name not in ALL_VARIANTS and is_baseline(name)


def _run_baselines(names: list[str], data: str | None, seeds: int | None, out: Path) -> list[dict[str, Any]]:
    from rgat.experiments.baseline_runs import run_baselines

    if data is None:
        raise ValueError("`DATA` must name a data set, got nothing; `rgat data list` shows those there are")
    records = []
    with console.status("loading") as status:
        for name in names:
            for record in run_baselines(name, data, seeds or 3, out):
                records.append(record)
                status.update(f"{record['model']}, {len(records)} runs")
    console.print(_baseline_table(records))
    for record in records:
        if record["status"] != "done":
            _say(f"{record['model']}, seed {record['seed']}: {record['error']}")
    console.print(f"Mean ± standard deviation in %, of the metric of {data}; records in {out / data}", highlight=False)
    return records


def _baseline_table(records: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("system")
    for column in ("runs", "train", "valid", "test", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for model in dict.fromkeys(record["model"] for record in records):
        mine = [record for record in records if record["model"] == model and record["status"] == "done"]
        scores = [[record["scores"][part] for record in mine] for part in ("train", "valid", "test")]
        cells = [_mean_and_spread(values) if values and None not in values else "-" for values in scores]
        seconds = f"{statistics.mean(record['seconds'] for record in mine):.1f}" if mine else "-"
        table.add_row(model, str(len(mine)), *cells, seconds)
    return table


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders or packed files of records.", metavar="RUNS...")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("rgat-report"),
) -> None:
    """Turn records into tables, charts, significance tests and one page to open in a browser.

    \b
    Examples:
      rgat report runs/aifb                      one data set
      rgat report records --out report           everything below a folder
    """
    from rgat.report import write_report

    _say_where(write_report(runs, out, _say))


@app.command()
def doctor() -> None:
    """Say what this machine can use, and why not the rest."""
    import torch

    from rgat import ops
    from rgat.version import __version__

    table = Table(show_header=False, box=None)
    table.add_row("rgat", __version__)
    table.add_row("python", platform.python_version())
    table.add_row("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    table.add_row("GPU", torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch can use")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked = os.environ.get("RGAT_BACKEND")
    try:
        usable = f"{ops.active_backend(device)} on {device}"
    except ValueError as error:
        usable = f"none: {error}"
    how = f"as RGAT_BACKEND={asked} says" if asked else "unless RGAT_BACKEND is set"
    table.add_row("backend", escape(f"{usable}, {how}"))
    for word, what in (("numba", "compiled loops on the CPU"), ("triton", "compiled kernels on a GPU")):
        reason = ops.why_not(word)
        table.add_row(f"  {word}", f"{what}: {'usable' if reason is None else 'not usable: ' + reason}")
    for package, purpose, extra in (
        ("rdkit", "molecules from SMILES", "molecules"),
        ("pyoxigraph", "knowledge graphs from RDF", "rdf"),
        ("optuna", "hyper-parameter search", "search"),
        ("sklearn", "support vector machines, forests", "baselines"),
        ("gensim", "RDF2Vec", "baselines"),
        ("matplotlib", "charts of a report", "report"),
        ("scipy", "statistics of a report", "report"),
        ("ray", "many machines", "ray"),
    ):
        found = importlib.util.find_spec(package) is not None
        how = "" if found else escape(f"; pip install 'rgat[{extra}]'")
        table.add_row(package, f"{'installed' if found else 'missing'}: {purpose}{how}")
    console.print(table, highlight=False)


def _one_by_one(option: str, arguments: Sequence[str]) -> list[str]:
    """Write `--tasks A B` as `--tasks A --tasks B`, which the parser knows."""
    found: list[str] = []
    inside = False
    for word in arguments:
        inside = word == option or (inside and not word.startswith("-"))
        found += [option, word] if inside and word != option and found[-1] != option else [word]
    return found


def main() -> None:
    """Entry point of `rgat`: a user's mistake ends with one sentence and exit code 2."""
    try:
        code = app(_one_by_one("--tasks", sys.argv[1:]), standalone_mode=False)
        sys.stdout.flush()
    except USAGE_ERROR as error:
        # Without a command the help is printed, and asked for.
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            raise SystemExit(0) from None
        print(f"rgat: {error.format_message()} (rgat --help lists what there is)", file=sys.stderr)
        raise SystemExit(2) from None
    except typer.Abort:
        raise SystemExit(130) from None
    except (ValueError, ImportError) as error:
        print(f"rgat: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:  # what the system refuses to read or to write, and nobody has put into words
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"rgat: {place}{error.strerror or error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # Python would try it again at the end, and print a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(2) from None
    raise SystemExit(code or 0)


if __name__ == "__main__":
    main()
