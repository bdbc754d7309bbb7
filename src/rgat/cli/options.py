"""Options that several commands share, and dataclasses as groups of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

DataName = Annotated[str, typer.Argument(metavar="DATA", help="A data set, as `rgat data list` shows them.")]
OptionalDataName = Annotated[
    str | None, typer.Argument(metavar="DATA", help="A data set, as `rgat data list` shows them.")
]
ModelFolder = Annotated[Path, typer.Argument(help="Folder that `rgat train` wrote.")]
SmilesColumn = Annotated[str | None, typer.Option(help="Column of the SMILES; default: smiles.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses: Typer sees each field as an option, the command gets them filled in.

    A command with many options so has few parameters, and passes options of one kind on together.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: entry.annotation for name, entry in parameters.items() if is_dataclass(entry.annotation)
    }
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    def flat(**values: Any) -> None:
        filled = {name: groups[name](**{field: values.pop(field) for field in fields[name]}) for name in groups}
        command(**values, **filled)

    options = [
        option
        for name, entry in parameters.items()
        for option in (fields[name].values() if name in groups else [entry])
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY  # options without a default may follow others
    signature = inspect.Signature([option.replace(kind=keyword) for option in options])
    flat.__name__, flat.__doc__, flat.__module__ = command.__name__, command.__doc__, command.__module__
    flat.__signature__ = signature  # type: ignore[attr-defined]
    return flat


def required_data(data: str | None) -> str:
    """Return the data set's name, or raise if none was given."""
    if data is None:
        raise ValueError("`DATA` must name a data set, got nothing; `rgat data list` shows those there are")
    return data
