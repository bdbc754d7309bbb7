"""Options that several commands share, and dataclasses as groups of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

DATA_NAME = Argument(metavar="DATA", help="A data set that `rgat data list` shows.")
DataName = Annotated[str, DATA_NAME]
OptionalDataName = Annotated[str | None, DATA_NAME]
ModelFolder = Annotated[Path, Argument(metavar="MODEL", help="A folder that `rgat train` wrote.")]
SmilesColumn = Annotated[str | None, Option(metavar="NAME", help="Column that holds the SMILES.  [default: smiles]")]
RdfFormat = Annotated[
    str | None,
    Option(metavar="NAME", help="Format of --rdf, if file names do not tell: ntriples, turtle, rdfxml, jsonld, ..."),
]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object.")]
Workers = Annotated[int | None, Option(min=1, metavar="N", help="Number of processes.  [default: one per core]")]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each of its dataclass parameters replaced by one Typer option per field.

    Such a command has few parameters and passes options of one kind on together.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)}
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    def call_grouped(**values: Any) -> None:
        filled = {name: groups[name](**{field: values.pop(field) for field in fields[name]}) for name in groups}
        command(**values, **filled)

    options = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)  # a required option may follow one with a default
        for name, parameter in parameters.items()
        for option in (fields[name].values() if name in groups else [parameter])
    ]
    call_grouped.__name__, call_grouped.__doc__ = command.__name__, command.__doc__
    call_grouped.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call_grouped


def required_data(data: str | None) -> str:
    """Return the name of the data set; raise if none was given."""
    if data is None:
        raise ValueError("`DATA` must name a data set, got nothing; `rgat data list` shows the names")
    return data
