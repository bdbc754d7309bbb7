"""`rgat explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rgat.cli import printing
from rgat.cli.options import AsJson, ModelFolder
from rgat.cli.printing import print_line, print_table


def explain(
    model: ModelFolder,
    node: Annotated[str | None, typer.Option(help="A node; without one: relations of the whole graph.")] = None,
    smiles: Annotated[str | None, typer.Option(help="A molecule.")] = None,
    task: Annotated[str | None, typer.Option(help="Of a molecule; default: the most probable.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to show; with --json of a node alone.")] = 15,
    by: Annotated[str, typer.Option(help="Order of the edges: strength, attention or effect.")] = "strength",
    as_json: AsJson = False,
    page: Annotated[Path | None, typer.Option("--html", help="Write a page to explore in a browser.")] = None,
) -> None:
    """Say why: attention, and what happens without an edge, an atom or a bond.

    \b
    Examples:
      rgat explain model --node http://example.org/ada --html ada.html
      rgat explain model                        importance of relations
      rgat explain model --smiles CCO --json
    """
    from rgat.predictor import files as own_data

    fitted = own_data.load(model)
    explanation = own_data.explain(fitted, node=node, smiles=smiles, task=task, top=top, by=by, page=page)
    if as_json:
        print(json.dumps(explanation.as_json(), ensure_ascii=False))
        return
    sentences, columns, rows, texts = own_data.explanation_table(explanation, top, wide=printing.console.width >= 108)
    for line in sentences:
        print_line(line)
    print_table(columns, rows, texts)
    if page is not None:
        print_line(f"Open {page} in a browser.")
