"""One report on synthetic records of nodes and graphs, written twice, for all tests of its files and its page."""

import made_up
import pytest

from rgat.report import write_report


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    made_up.write_study(root / "runs/aifb", seeds=6, trials=24, baselines={"WL": 0.805})
    made_up.write_study(root / "runs/tox21", seeds=2, trials=0, data="tox21", task="graph")
    for name in ("first", "second"):
        assert write_report([root / "runs"], root / name) == root / name / "report.html"
    return root
