"""`rgat data`: list, count and download data sets."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from typer import Argument, Option

from rgat.cli.options import AsJson, DataName
from rgat.cli.printing import count_bar, print_line, print_table

app = typer.Typer(
    help="List, count and download data sets.\n\n\b\nExample:\n  rgat data list",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
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


@app.command()
def stats(
    name: DataName,
    as_json: AsJson = False,
    split: Annotated[int | None, Option(metavar="SEED", help="Random seed of the split; for Tox21 only.")] = None,
) -> None:
    """Count the nodes, edges, relations and labels of a data set.

    \b
    Examples:
      rgat data stats aifb
      rgat data stats tox21-distinct --split 123 --json
    """
    from rgat.data import load, statistics

    if split is not None and not name.startswith("tox21"):
        raise ValueError(f"`--split` must be left out for {name}, whose split is fixed")
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


@app.command()
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

    with count_bar(name) as show:
        files = registry.fetch(name, show)
    for file, path in files.items():
        checked = "SHA-256 verified" if BENCHMARKS[name].files[file] else "no published SHA-256 to compare with"
        print_line(f"{path} ({checked})")
