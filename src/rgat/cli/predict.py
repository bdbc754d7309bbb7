"""`rgat predict`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from rgat.cli.options import ModelFolder, RdfFormat, SmilesColumn, grouped
from rgat.cli.printing import print_line, print_table, show_stages


@dataclass(frozen=True)
class NodeOptions:
    """Options for models of nodes; the fields are named after those of `rgat.predictor.files.predict`."""

    node: Annotated[list[str] | None, Option(metavar="IRI", help="Predict this node; may be repeated.")] = None
    nodes: Annotated[Path | None, Option(metavar="FILE", help="Predict the nodes of a file, one per line.")] = None
    kind: Annotated[
        str | None, Option("--type", metavar="IRI", help="Predict the unlabelled nodes of this rdf:type.")
    ] = None
    rdf: Annotated[
        list[Path] | None,
        Option(metavar="FILE", help="RDF file with triples added since training, may be repeated; or a store."),
    ] = None
    format: RdfFormat = None
    predicate: Annotated[str | None, Option(metavar="IRI", help="Predicate of the triples.")] = None
    provenance: Annotated[
        bool, Option("--provenance", help="Add triples of each prediction's probability, spread and model.")
    ] = False
    update: Annotated[str | None, Option(metavar="URL", help="Insert the triples at this SPARQL update endpoint.")] = (
        None
    )


@dataclass(frozen=True)
class MoleculeOptions:
    """Options for models of molecules; the fields are named after those of `rgat.predictor.files.predict`."""

    smiles: Annotated[
        str | None, Option(metavar="FILE|SMILES", help="Predict the molecules of a file, or one molecule.")
    ] = None
    smiles_column: SmilesColumn = None
    workers: Annotated[int | None, Option(min=1, metavar="N", help="Number of processes that parse SMILES.")] = None
    resume: Annotated[bool, Option("--resume", help="Continue an interrupted --out file of molecules.")] = False


@grouped
def predict(
    model: ModelFolder,
    *,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Write .csv, .tsv or, for nodes, .nt instead of printing.")
    ] = None,
    nodes: NodeOptions,
    molecules: MoleculeOptions,
) -> None:
    """Predict the classes or other targets of nodes or molecules.

    \b
    Examples:
      rgat predict model --out predictions.csv
      rgat predict model --node http://example.org/ada
      rgat predict model --rdf new.nt --out predictions.nt --provenance
      rgat predict model --smiles library.smi --out predictions.csv --resume
    """
    from rgat.predictor import files as own_data
    from rgat.predictor import load
    from rgat.predictor.streaming import PREDICTION
    from rgat.predictor.text import prediction_rows

    with show_stages("loading", PREDICTION, show=out is not None) as stages:
        stages("loading")
        predictor = load(model)
        stages(PREDICTION)
        predictions, notes = own_data.predict(predictor, out, progress=stages, **asdict(nodes), **asdict(molecules))
    if out is None and predictions is not None:
        print_table(*prediction_rows(predictions), text_columns=2)
    for line in notes:
        print_line(line)
