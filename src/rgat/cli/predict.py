"""`rgat predict`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rgat.cli.options import ModelFolder, SmilesColumn, grouped
from rgat.cli.printing import print_line, print_table, step_bars


@dataclass(frozen=True)
class NodeOptions:
    """Options for models of nodes."""

    node: Annotated[list[str] | None, typer.Option(help="A node to judge; repeat for several.")] = None
    nodes: Annotated[Path | None, typer.Option(help="A file with a node per line.")] = None
    kind: Annotated[str | None, typer.Option("--type", help="Judge all unlabelled nodes of this type.")] = None
    rdf: Annotated[list[Path] | None, typer.Option(help="Triples added since training.")] = None
    predicate: Annotated[str | None, typer.Option(help="IRI of the triples in an .nt file.")] = None


@dataclass(frozen=True)
class MoleculeOptions:
    """Options for models of molecules."""

    smiles: Annotated[str | None, typer.Option(help="A file of molecules, or one SMILES.")] = None
    smiles_column: SmilesColumn = None
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that read SMILES.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted file of molecules.")] = False


@grouped
def predict(
    model: ModelFolder,
    nodes: NodeOptions,
    molecules: MoleculeOptions,
    out: Annotated[Path | None, typer.Option(help="File: .csv or .tsv; triples of nodes: .nt.")] = None,
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
    with step_bars() as progress:
        predictions, notes = own_data.predict(
            fitted,
            out,
            nodes=own_data.read_nodes(nodes.node or (), nodes.nodes),
            kind=nodes.kind,
            rdf=nodes.rdf,
            predicate=nodes.predicate,
            **asdict(molecules),
            progress=progress,
        )
    if out is None and predictions is not None:
        print_table(*prediction_rows(predictions), texts=2)
    for line in notes:
        print_line(line)
