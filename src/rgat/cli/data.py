"""`rgat data`: list, count, download, fetch and convert data sets."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from rgat.cli.options import AsJson, GraphOptions, GroupedCommand, grouped
from rgat.cli.printing import print_line, print_table, show_stages
from rgat.progress import Stages

app = typer.Typer(
    help="List, count, download and convert data sets.\n\n\b\nExample:\n  rgat data list",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list", cls=GroupedCommand)
def list_names() -> None:
    """List the data sets and whether their files are on this machine.

    \b
    Example:
      rgat data list
    """
    from rgat.data import BENCHMARKS, REGISTRY
    from rgat.data.benchmarks.registry import locate

    rows = []
    for name in REGISTRY:
        if name in BENCHMARKS:
            counts = ", ".join(f"{number:,} {things}" for things, number in BENCHMARKS[name].counts.items())
            is_present = len(locate(name)) == len(BENCHMARKS[name].files)
            rows.append((name, counts, "present" if is_present else f"rgat data fetch {name}"))
        else:
            rows.append((name, "built in", "generated"))
    print_table(("name", "content", "files"), rows, text_columns=3)


@app.command(cls=GroupedCommand)
def stats(
    name: Annotated[str, Argument(metavar="DATA", help="A data set that `rgat data list` shows, or a store.")],
    as_json: AsJson = False,
    split: Annotated[int | None, Option(metavar="SEED", help="Random seed of the split; for Tox21 only.")] = None,
    verify: Annotated[bool, Option("--verify", help="Read all files of a store and compare their checksums.")] = False,
) -> None:
    """Count the nodes, edges, relations and labels of a data set.

    \b
    Examples:
      rgat data stats aifb
      rgat data stats tox21-distinct --split 123 --json
      rgat data stats my-store --verify
    """
    from rgat.data import REGISTRY, load, open_store, statistics
    from rgat.data.store.statistics import store_statistics

    is_store = name not in REGISTRY and Path(name).is_dir()
    if verify and not is_store:
        raise ValueError(f"`--verify` must come with a store, got {name}; leave it out")
    if split is not None and not name.startswith("tox21"):
        raise ValueError(f"`--split` must be left out for {name}, whose split is fixed")
    if is_store:
        store = open_store(name)
        if verify:
            store.verify()
        numbers = store_statistics(store)
    else:
        numbers = statistics(load(name, **({} if split is None else {"split": split})))
    if as_json:
        print(json.dumps(numbers))
    else:
        print_table((), [(key.replace("_", " "), _cell(value)) for key, value in numbers.items()])


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_short(name)} {number:,}" for name, number in value.items())
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] if name.startswith("http") else name


@app.command(cls=GroupedCommand)
def fetch(
    name: Annotated[str, Argument(metavar="DATA", help="A benchmark that `rgat data list` shows.")],
) -> None:
    """Download a benchmark to the cache folder and verify its SHA-256.

    \b
    Example:
      rgat data fetch mutag
    """
    from rgat.data import BENCHMARKS
    from rgat.data.benchmarks import registry

    with show_stages(f"download of {name}") as stages:
        files = registry.fetch(name, partial(_show_bytes, stages))
    for file, path in files.items():
        checked = "SHA-256 verified" if BENCHMARKS[name].files[file] else "no published SHA-256 to compare with"
        print_line(f"{path} ({checked})")


def _show_bytes(stages: Stages, done: int, total: int | None) -> None:
    of_all = f" of {total / 1e6:,.1f}" if total else ""
    stages(stages.names[0], done / total if total else 0.0, f"{done / 1e6:,.1f}{of_all} MB", done / 1e6, "MB")


@dataclass(frozen=True)
class StoreOptions:
    """What else a store holds; the fields are arguments of `rgat.data.convert`."""

    literals: Annotated[str, Option(metavar="KIND", help="Literals: nodes, features or dropped.")] = "nodes"
    blank_nodes: Annotated[str, Option(metavar="KIND", help="Blank nodes: kept or dropped.")] = "kept"
    inverses: Annotated[bool, Option(help="Add an inverse of every relation.")] = True
    self_loops: Annotated[bool, Option(help="Add a relation from every node to itself.")] = True


@app.command("convert", cls=GroupedCommand)
@grouped
def convert_dumps(
    dumps: Annotated[list[Path], Argument(metavar="DUMP", help="RDF files, plain or compressed.")],
    store: Annotated[Path, Argument(metavar="STORE", help="Folder to write, new or empty.")],
    graph: GraphOptions,
    options: StoreOptions,
    memory: Annotated[int, Option(min=1, metavar="MB", help="Memory for sorting, beyond the names of nodes.")] = 256,
) -> None:
    """Convert RDF files to a store of memory-mapped files.

    \b
    Examples:
      rgat data convert dump.nt.gz STORE
      rgat data convert a.nt b.ttl STORE --labels labels.tsv
      rgat train --rdf STORE --labels labels.tsv --out model
    """
    from rgat.data import convert
    from rgat.data.store.writer import show_bytes

    arguments = graph.arguments() | asdict(options)
    parts = {part: arguments.pop(f"{part}_labels") for part in ("valid", "test")}
    if any(parts.values()):
        arguments |= {"train": arguments.pop("labels"), **parts}
    start = time.monotonic()
    with show_stages() as stages:
        stored = convert(dumps, store, **arguments, memory=memory << 20, progress=stages.show)
    seconds = time.monotonic() - start
    print_line(
        f"{store}: {stored.num_nodes:,} nodes, {stored.manifest.num_triples:,} triples, {stored.num_edges:,} edges, "
        f"{stored.num_relations:,} relations; {show_bytes(stored.num_bytes)} in {seconds:.1f} s"
    )


@dataclass(frozen=True)
class FetchOptions:
    """Which part of a graph to read; the fields are arguments of `rgat.data.fetch_neighbourhood`."""

    labels: Annotated[Path | None, Option(metavar="FILE", help="TSV or CSV of nodes and their classes.")] = None
    node_column: Annotated[str | None, Option(metavar="NAME", help="Column of the nodes.  [default: first]")] = None
    label_predicate: Annotated[
        str | None, Option(metavar="IRI", help="Read the neighbourhood of the subjects of this predicate.")
    ] = None
    hops: Annotated[int, Option("--layers", min=1, metavar="N", help="Layers of the model: how far to read.")] = 2
    drop_predicates: Annotated[
        list[str] | None, Option("--drop", metavar="IRI", help="Predicate to leave out; repeat for several.")
    ] = None
    page: Annotated[int, Option(min=1, metavar="N", help="Rows of an answer at most.")] = 10_000
    timeout: Annotated[float, Option(metavar="SECONDS", help="Longest time for one answer.")] = 60.0


@app.command(cls=GroupedCommand)
@grouped
def sparql(
    source: Annotated[str, Argument(metavar="SOURCE", help="Address of an endpoint, or folder of an Oxigraph store.")],
    out: Annotated[Path, Argument(metavar="FILE", help="File to write, .nt.")],
    options: FetchOptions,
    nodes: Annotated[
        Path | None, Option(metavar="FILE", help="Further nodes, one per line, such as those to predict.")
    ] = None,
) -> None:
    """Read what a model needs of a graph behind SPARQL.

    \b
    Examples:
      rgat data sparql http://localhost:7878/query near.nt --labels labels.tsv
      rgat train --rdf near.nt --labels labels.tsv --out model
    """
    from rgat.data import fetch_neighbourhood
    from rgat.predictor.files import read_nodes

    arguments = asdict(options) | {
        "drop_predicates": options.drop_predicates or (),
        "nodes": read_nodes((), nodes) or (),
    }
    with show_stages("reading") as stages:
        fetched = fetch_neighbourhood(source, out, **arguments, progress=stages)
    lost = f"; {fetched.left_out:,} triples of blank nodes left out" if fetched.left_out else ""
    print_line(f"{out}: {fetched.triples:,} triples, all that {fetched.nodes:,} nodes have{lost}")
