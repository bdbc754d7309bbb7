"""Options that several commands share, and dataclasses as groups of options."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from typer import Argument, Option
from typer.core import TyperCommand

DATA_NAME = Argument(metavar="DATA", help="A data set that `rgat data list` shows.")
DataName = Annotated[str, DATA_NAME]
OptionalDataName = Annotated[str | None, DATA_NAME]
ModelFolder = Annotated[Path, Argument(metavar="MODEL", help="A folder that `rgat train` wrote.")]
SmilesColumn = Annotated[str | None, Option(metavar="NAME", help="Column that holds the SMILES.  [default: smiles]")]
RdfFormat = Annotated[
    str | None,
    Option(metavar="NAME", help="Format of the files, if names do not tell: ntriples, turtle, rdfxml, jsonld, ..."),
]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object.")]
Workers = Annotated[int | None, Option(min=1, metavar="N", help="Number of processes.  [default: one per core]")]


@dataclass(frozen=True)
class GraphOptions:
    """Labels and features of a knowledge graph; the fields are arguments of `rgat.data.from_rdf` and `convert`."""

    labels: Annotated[Path | None, Option(metavar="FILE", help="TSV or CSV of nodes and their classes.")] = None
    valid_labels: Annotated[
        Path | None, Option(metavar="FILE", help="Labels of the validation part; --labels are then for training.")
    ] = None
    test_labels: Annotated[
        Path | None, Option(metavar="FILE", help="Labels of the test part.  [default: a fifth of --labels]")
    ] = None
    node_column: Annotated[str | None, Option(metavar="NAME", help="Column of the nodes.  [default: first]")] = None
    label_column: Annotated[
        list[str] | None, Option(metavar="NAME", help="Column to learn; repeat for several.  [default: last]")
    ] = None
    split_column: Annotated[
        str | None, Option(metavar="NAME", help="Column with train, valid and test, or for --split.")
    ] = None
    label_predicate: Annotated[
        str | None,
        Option(metavar="IRI", help="Predicate of the classes, instead of --labels; its triples are removed."),
    ] = None
    drop_predicates: Annotated[
        list[str] | None, Option("--drop", metavar="IRI", help="Predicate to leave out; repeat for several.")
    ] = None
    features: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Node features: types, degrees, literals, several with commas; to train also identity (one-hot), "
            "or auto, the default: the best input by validation.",
        ),
    ] = None
    skip_unknown: Annotated[bool, Option("--skip-unknown", help="Drop labels of unknown nodes.")] = False
    format: RdfFormat = None

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of a function."""
        features = tuple(self.features.split(",")) if self.features else ()
        given = {"drop_predicates": tuple(self.drop_predicates or ()), "label_column": self.label_column or None}
        return asdict(self) | given | {"features": features}


# Titles of the groups on a help page, by dataclass; fields named here belong to the training, whatever their dataclass.
PANELS = {
    "GraphFiles": "Your graph",
    "GraphOptions": "Your graph",
    "StoreOptions": "Your graph",
    "FetchOptions": "Your graph",
    "MoleculeFile": "Your molecules",
    "TaskOptions": "Your graph or molecules",
    "ModelOptions": "Model",
    "FitOptions": "Training",
    "NodeOptions": "Models of nodes",
    "MoleculeOptions": "Models of molecules",
}
TRAINING = ("max_epochs", "patience", "learning_rate", "batch_size", "fanouts", "validate_every", "kernel_l2")


class GroupedCommand(TyperCommand):
    """A command whose help page lists its options in groups, those of the command itself first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        sections: dict[str, list[Any]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            own = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                name, sentence = record[0].partition(" <")[0], record[1]  # without the type of an argument
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or own, []).append((name, sentence))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _in_panel(group: Any, field: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter of a field with the title of its group on the help page."""
    title = "Training" if field.name in TRAINING else PANELS.get(group.__name__)
    kind, option, *_ = get_args(field.annotation)
    option = copy.copy(option)  # commands share some options
    option.rich_help_panel = title
    return field.replace(annotation=Annotated[kind, option])


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each of its dataclass parameters replaced by one Typer option per field.

    Such a command has few parameters and passes options of one kind on together.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)}
    fields = {
        name: {
            field.name: _in_panel(group, field) for field in inspect.signature(group, eval_str=True).parameters.values()
        }
        for name, group in groups.items()
    }

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
