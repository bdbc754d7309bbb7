import pytest
from rich.console import Console

from rgat.cli.printing import mean_and_spread, print_table


def test_cells_showmean_and_spread():
    assert mean_and_spread([0.5, 0.7]) == "60.0 ±14.1"
    assert mean_and_spread([1.0]) == "100.0"
    assert mean_and_spread([]) == "-"


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_keeps_words_and_numbers_whole(monkeypatch, capsys, width):
    monkeypatch.setattr("rgat.cli.printing.console", Console(width=width))
    columns = ("relation", "attention", "effect, points", "log-odds", "class changes")
    print_table(columns, [("inverse of lunchesWith", "11.0%", "-0.03", "-0.521", "12.5%")])
    words = capsys.readouterr().out.split()
    for word in ("relation", "attention", "points", "changes", "lunchesWith", "11.0%", "-0.03", "-0.521", "12.5%"):
        assert word in words
