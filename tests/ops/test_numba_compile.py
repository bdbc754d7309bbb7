"""Where the machine code of the CPU backend's loops is kept, and when it is made anew."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rgat import folders
from rgat.ops.numba import compile as numba_compile

# Stand-ins for the loop files that compile in no time: one takes code from the other.
ROWS = """
from rgat.ops.numba.compile import inline

@inline
def term(number):
    return number + 1
"""
PROJECTIONS = """
from rgat.ops.numba.compile import compiled
from rgat.ops.numba.row_loops import term

@compiled
def total(number):
    return term(number)
"""
CALL = """
from rgat.ops.numba import compile, projection_loops
compile.announce()
print(projection_loops.total(1), sum(projection_loops.total.stats.cache_hits.values()), compile.FOLDER)
"""


@pytest.fixture
def package(tmp_path):
    """The folder of a package that compiles loops as this one does."""
    folder = tmp_path / "rgat" / "ops" / "numba"
    folder.mkdir(parents=True)
    files = {
        "../../__init__": "",
        "../__init__": "",
        "__init__": "",
        "blas": "",
        "row_loops": ROWS,
        "projection_loops": PROJECTIONS,
    }
    files["compile"] = Path(numba_compile.__file__).read_text()
    files["../../folders"] = Path(folders.__file__).read_text()
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source)
    return folder


def call(package, **environment):
    """The result, whether the loop came from the disk, its folder, and what was said."""
    variables = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    variables |= {"PYTHONPATH": str(package.parents[2]), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, timeout=300, env=variables)
    assert done.returncode == 0, done.stderr
    value, hits, folder = done.stdout.split()
    return int(value), int(hits) > 0, None if folder == "None" else Path(folder), done.stderr


def test_a_change_of_any_loop_file_makes_machine_code_anew(package):
    value, from_disk, first, said = call(package)
    assert (value, from_disk) == (2, False)
    assert said == f"rgat: compiling the loops of the CPU backend, once; they are kept in {first}\n"
    assert call(package)[:3] == (2, True, first)
    changed = package / "row_loops.py"
    status = changed.stat()
    changed.write_text(ROWS.replace("number + 1", "number - 1"))
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))  # as an installer may leave it
    assert changed.stat().st_size == status.st_size
    value, from_disk, second, _ = call(package)
    assert (value, from_disk) == (0, False)
    assert first.is_dir()  # a process that began before the change may still write to it
    os.utime(first, (0, 0))
    assert call(package)[:3] == (0, True, second)
    assert not first.exists()


def test_every_file_that_loops_take_code_from_decides():
    names = {path.stem for path in numba_compile.loop_files()}
    assert {"attention_loops", "row_loops", "projection_loops", "compile", "blas"} <= names
    visited = 0
    for path in numba_compile.loop_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rgat."):
                if node.module == "rgat.folders":  # where the code is kept, no part of it
                    continue
                assert node.module.removeprefix("rgat.ops.numba.") in names, f"{path.name} imports {node.module}"
                visited += 1
    assert visited >= 4


def test_read_only_package_and_home_leave_a_private_temporary_folder(package, tmp_path):
    (package / "__pycache__").touch()  # a file where a folder would be, so that root cannot write there either
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.touch()
    temporary.mkdir()
    where = {"HOME": str(home), "XDG_CACHE_HOME": "", "TMPDIR": str(temporary)}
    value, from_disk, folder, said = call(package, **where)
    assert (value, from_disk) == (2, False)
    assert folder.is_relative_to(temporary)
    assert said.endswith(
        f"once; they are kept in {folder} until temporary files are removed; "
        "set NUMBA_CACHE_DIR to a folder that lasts\n"
    )
    assert folder.parents[1].stat().st_mode & 0o777 == 0o700
    assert call(package, **where)[:3] == (2, True, folder)


def test_where_nothing_can_be_written_loops_are_compiled_in_memory(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(numba_compile, "_cache_folders", lambda: iter([tmp_path / "file" / "loops"]))
    monkeypatch.setattr(numba_compile, "FOLDER", numba_compile._find_folder())
    assert numba_compile.FOLDER is None

    @numba_compile.compiled
    def double(number):
        return 2 * number

    assert double(3) == 6
    assert double.stats.cache_path is None
    numba_compile.announce.__wrapped__()
    assert capsys.readouterr().err == (
        "rgat: compiling the loops of the CPU backend for this process alone, as no folder can be written to keep "
        "them in; set NUMBA_CACHE_DIR to one that can\n"
    )


def test_the_folder_that_numba_is_told_to_use_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_compile.numba.config, "CACHE_DIR", str(tmp_path))
    assert numba_compile._find_folder().is_relative_to(tmp_path)


@pytest.mark.parametrize("kind", ["open to others", "a link"])
def test_a_temporary_folder_that_others_can_write_is_not_used(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(numba_compile.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = folders.temporary_folder()
    assert folder.parent == tmp_path
    assert folder in [place.parent for place in numba_compile._cache_folders()]
    folder.rmdir()
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    assert folder not in [place.parent for place in numba_compile._cache_folders()]
