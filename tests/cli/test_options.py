from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from rgat.cli.options import grouped, required_data


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option()] = 1
    height: Annotated[int, typer.Option("--tall")] = 2


def test_each_field_of_a_group_is_an_option():
    calls = []

    @grouped
    def draw(name: str, size: Size, *, bold: bool = False) -> None:
        """Draw something."""
        calls.append((name, size, bold))

    app = typer.Typer()
    app.command()(draw)
    assert CliRunner().invoke(app, ["box", "--tall", "5", "--bold"]).exit_code == 0
    assert CliRunner().invoke(app, ["box"]).exit_code == 0
    assert calls == [("box", Size(1, 5), True), ("box", Size(), False)]
    assert CliRunner().invoke(app, ["box", "--height", "5"]).exit_code == 2
    assert "Draw something." in CliRunner().invoke(app, ["--help"]).output


def test_a_missing_data_set_is_an_error():
    assert required_data("aifb") == "aifb"
    with pytest.raises(ValueError, match="`DATA` must name a data set, got nothing"):
        required_data(None)
