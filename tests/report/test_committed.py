"""The committed results are generated from the committed records, and the committed plans can be read."""

from pathlib import Path

import pytest

from rgat.experiments.request import read_request
from rgat.report import write_report

ROOT = Path(__file__).parents[2]


def test_the_committed_results_are_those_of_the_committed_records(tmp_path, monkeypatch):
    # Charts are not committed, and saving each in three formats takes half a minute.
    monkeypatch.setattr("rgat.report.formats.Chart.save", lambda chart: {"svg": b"<svg/>"})
    write_report([ROOT / "results"], tmp_path)
    assert (tmp_path / "results.md").read_bytes() == (ROOT / "docs" / "results.md").read_bytes()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*/*.toml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_shipped_configurations_are_plans(path):
    plan = read_request(path)
    assert plan["data"] == path.parent.name
    assert plan["selected"]
