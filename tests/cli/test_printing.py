from rgat.cli.printing import mean_and_spread


def test_cells_showmean_and_spread():
    assert mean_and_spread([0.5, 0.7]) == "60.0 ±14.1"
    assert mean_and_spread([1.0]) == "100.0"
    assert mean_and_spread([]) == "-"
