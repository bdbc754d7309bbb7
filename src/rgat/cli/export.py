"""`rgat export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from rgat.cli.options import ModelFolder
from rgat.cli.printing import print_line


def export(
    model: ModelFolder,
    out: Annotated[Path, Argument(metavar="FILE", help="File to write: .onnx, or .pt2 for `torch.export`.")],
) -> None:
    """Export a model as a program that runs without this package.

    \b
    Examples:
      rgat export model model.onnx
      rgat export model model.pt2
    """
    from rgat.predictor import load

    difference = load(model).export(out)
    print_line(f"{out}: written; its probabilities differ from the model's by at most {difference:.1g}")
