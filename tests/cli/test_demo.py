import re

from rgat.training.configuration import VARIANTS


def test_demo_prints_a_table_that_fits_a_narrow_terminal_and_ends_in_a_page(rgat, rgat_here, tmp_path, monkeypatch):
    monkeypatch.setenv("RGAT_BACKEND", "torch")  # workers have nothing to compile
    sets = ("--set", "planted-consensus", "--set", "planted-consensus")
    done = rgat("demo", *sets, "--seeds", "2", "--out", str(tmp_path / "x"), columns=50)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if re.search(r"\d\d\.\d ±", line)]
    assert [len(re.findall(r"\d\d\.\d ± ?\d", row)) for row in rows] == [1, 2, 2, 2, 2]  # an RGCN has no constant row
    assert sum(name in done.stdout for name in VARIANTS) == 5
    *lines, last = (line for line in done.stdout.splitlines() if not line.startswith("stage "))
    assert max(map(len, lines)) <= 50
    assert "…" not in done.stdout
    page = tmp_path / "x" / "report" / "report.html"
    assert last == f"The report, to open in a browser: {page}"
    assert "planted-consensus" in page.read_text()
    again = rgat_here("report", tmp_path / "x" / "records", "--out", tmp_path / "y")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "y" / "report.html").read_bytes() == page.read_bytes()
