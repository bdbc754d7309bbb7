"""`rgat explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from typer import Option

from rgat.cli import printing
from rgat.cli.options import AsJson, ModelFolder
from rgat.cli.printing import print_line, print_table


def explain(
    model: ModelFolder,
    node: Annotated[str | None, Option(metavar="IRI", help="Explain this node.  [default: rank all relations]")] = None,
    smiles: Annotated[str | None, Option(metavar="SMILES", help="Explain this molecule.")] = None,
    task: Annotated[
        str | None, Option(metavar="NAME", help="Target to explain.  [default: the first, or the most probable task]")
    ] = None,
    top: Annotated[
        int, Option(min=1, metavar="N", help="Number of rows; with --json it limits a node's edges only.")
    ] = 15,
    by: Annotated[str, Option(metavar="NAME", help="Sort edges by strength, attention or effect.")] = "strength",
    as_json: AsJson = False,
    page: Annotated[Path | None, Option("--html", metavar="FILE", help="Write a page to explore in a browser.")] = None,
) -> None:
    """Explain a prediction by attention and by removing parts.

    \b
    Examples:
      rgat explain model                        importance of relations
      rgat explain model --node http://example.org/ada --html ada.html
      rgat explain model --smiles CCO --json
    """
    from rgat.predictor import files as own_data
    from rgat.predictor import load
    from rgat.predictor.text import explanation_table

    explanation = own_data.explain(load(model), node=node, smiles=smiles, task=task, top=top, by=by, page=page)
    if as_json:
        print(json.dumps(explanation.as_json(), ensure_ascii=False))
        return
    sentences, columns, rows, texts = explanation_table(explanation, top, wide=printing.console.width >= 108)
    for line in sentences:
        print_line(line)
    print_table(columns, rows, texts)
    if page is not None:
        print_line(f"Open {page} in a browser.")
