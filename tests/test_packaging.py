"""What a release needs: versions, and links in the files at the root."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_links_of_the_files_at_the_root_lead_somewhere():
    links = [
        (page, link)
        for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
        for link in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
        if not link.startswith("https://")
    ]
    assert len(links) > 20
    assert not [each for each in links if not (ROOT / each[1]).exists()]


@pytest.mark.xdist_group("one")
def test_the_installed_pytest_keeps_a_group_of_tests_in_one_process(request):
    if not request.config.getoption("loadgroup", False):
        pytest.skip("needs `pytest -n 2 --dist loadgroup`, as `make test` runs it")
    assert request.node.nodeid.endswith("@one"), "tests that must not run at the same time would"


def test_the_wheel_holds_the_package_and_the_source_package_its_tests(tmp_path):
    for name in ("build", "setuptools_scm"):
        pytest.importorskip(name, reason=f"building the wheel needs {name}")
    clone = tmp_path / "clone"  # building writes into the source tree
    if subprocess.run(["git", "clone", "--quiet", ROOT, clone], capture_output=True).returncode:
        pytest.skip("the list of source files needs a Git repository")
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=clone, capture_output=True, text=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, clone]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = tmp_path.glob("*-py3-none-any.whl"), tmp_path.glob("*.tar.gz")
    assert re.match(r"rgat-\d+\.\d+(\.\d+)?(\.dev\d+\+g[0-9a-f]+)?-py3", wheel.name)

    held = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in tracked.stdout.split() if name.removeprefix("src/") not in held]
    assert not missing
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/test_packaging.py", "docs/index.md", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith("results/")]
