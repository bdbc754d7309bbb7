"""Each arrow of `bytes -> graph -> op -> layer -> model -> training -> ...` is one import direction."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers_imports import Import, ImportGraph

import rgat

ROOT = Path(rgat.__file__).parent
CHAIN = [
    "version",
    "checks",
    "folders",
    "memory",
    "workers",
    "locks",
    "progress",
    "structure",
    "graph",
    "incoming",
    "ops",
    "nn",
    "models",
    "data",
    "sampling",
    "training",
    "baselines",
    "experiments",
    "predictor",
    "sklearn",
    "report",
    "serve",
    "cli",
    "__init__",
    "__main__",
]
# A model never sees a dataset, and data never sees a model: both stand on the graph alone.
FORBIDDEN = {("data", "ops"), ("data", "nn"), ("data", "models"), ("predictor", "experiments")}
# Imports of computed names: module and expression, then all modules that it can import.
COMPUTED = {
    ("rgat", "f'rgat.{name}'"): tuple(
        f"rgat.{name}" for name in ("data", "models", "nn", "ops", "sampling", "training")
    ),
    ("rgat.ops.dispatch", "f'rgat.ops.{name}.backend'"): (
        "rgat.ops.numba.backend",
        "rgat.ops.torch.backend",
        "rgat.ops.triton.backend",
    ),
}


@pytest.fixture(scope="module")
def graph():
    return ImportGraph(ROOT, COMPUTED)


def test_every_entry_of_the_tree_is_in_the_chain(graph):
    assert {graph.entry(module) for module in graph.modules} == set(CHAIN)
    assert len(CHAIN) == len(set(CHAIN))


def test_nothing_imports_to_its_right(graph):
    assert graph.to_the_right(CHAIN, FORBIDDEN) == []


def test_every_computed_import_is_listed(graph):
    assert graph.unresolved == []
    assert {key[0] for key in COMPUTED} <= set(graph.modules)
    without_list = ImportGraph(ROOT)
    assert {(entry.importer, entry.expression) for entry in without_list.unresolved} == set(COMPUTED)


def test_no_modules_import_each_other_in_a_circle(graph):
    assert graph.cycles() == []


def test_all_files_and_many_imports_are_visited(graph):
    assert sorted(graph.modules.values()) == sorted(ROOT.rglob("*.py"))
    assert len(graph.modules) > 150
    assert len(graph.imports) > 600
    assert {entry.importer for entry in graph.imports} >= {"rgat", "rgat.__main__", "rgat.cli", "rgat.ops.dispatch"}


def written(folder, files):
    """A package `rgat` with these files, and an empty `__init__.py` in each folder that has none."""
    for name, text in files.items():
        path = folder / "rgat" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in (path.parent, folder / "rgat"):
            (parent / "__init__.py").touch()
    return folder / "rgat"


def targets(graph, importer):
    return [entry.target for entry in graph.imports if entry.importer == importer]


STATEMENTS = {
    "import rgat.b": "rgat.b",
    "import rgat.p.c as x": "rgat.p.c",
    "import rgat": "rgat",
    "from rgat import b": "rgat.b",
    "from rgat import fit": "rgat",
    "from rgat.b import name": "rgat.b",
    "from rgat.p import c": "rgat.p.c",
    "from rgat.p import name": "rgat.p",
    "from rgat.p.c import *": "rgat.p.c",
    "from . import b": "rgat.b",
    "from .p.c import name": "rgat.p.c",
    "def f():\n    from rgat import b": "rgat.b",
    "class A:\n    def f(self):\n        import rgat.b": "rgat.b",
    "if TYPE_CHECKING:\n    from rgat.b import name": "rgat.b",
    "try:\n    from rgat import b\nexcept ImportError: pass": "rgat.b",
    "importlib.import_module('rgat.b')": "rgat.b",
    "importlib.import_module(name='rgat.b')": "rgat.b",
    "def f():\n    return import_module('rgat.p' + '.c').name": "rgat.p.c",
    "import_module(f'rgat.{\"b\"}')": "rgat.b",
    "import_module('.b', __package__)": "rgat.b",
    "import_module('.p.c', package=__package__)": "rgat.p.c",
    "from importlib import import_module as load\nload('rgat.b')": "rgat.b",
    "__import__('rgat.b')": "rgat.b",
    "pkgutil.resolve_name('rgat.b:name')": "rgat.b",
    "runpy.run_module(mod_name='rgat.b')": "rgat.b",
    "x = rgat.p.c.name.other": "rgat.p.c",
}


@pytest.mark.parametrize("source", STATEMENTS)
def test_the_checker_sees_every_kind_of_import(tmp_path, source):
    graph = ImportGraph(written(tmp_path, {"a.py": source, "b.py": "", "p/c.py": ""}))
    assert targets(graph, "rgat.a") == [STATEMENTS[source]]
    assert graph.unresolved == []


def test_the_checker_resolves_relative_imports_of_packages_and_of_modules_in_them(tmp_path):
    package, module = "from . import c\nfrom .c import x", "from .. import b\nfrom ..b import x"
    graph = ImportGraph(written(tmp_path, {"p/__init__.py": package, "p/c.py": module, "b.py": ""}))
    assert targets(graph, "rgat.p") == ["rgat.p.c", "rgat.p.c"]
    assert targets(graph, "rgat.p.c") == ["rgat.b", "rgat.b"]


COMPUTED_SOURCES = {
    "import_module(f'rgat.{name}')": "f'rgat.{name}'",
    "import_module('rgat.' + name)": "'rgat.' + name",
    "import_module(name)": "name",
    "import_module(TABLE[name])": "TABLE[name]",
    "import_module(f'{package}.b')": "f'{package}.b'",
    "import_module('.b', package)": "'.b'",
    "load = importlib.import_module": "importlib.import_module",
    "list(map(import_module, names))": "import_module",
    "getattr(importlib, 'import_module')(name)": "getattr(importlib, 'import_module')",
    "anything(f'rgat.{name}.backend')": "f'rgat.{name}.backend'",
    "exec('import rgat.b')": "exec('import rgat.b')",
}


@pytest.mark.parametrize("source", COMPUTED_SOURCES)
def test_the_checker_lists_imports_that_it_cannot_resolve(tmp_path, source):
    root = written(tmp_path, {"a.py": source, "b.py": ""})
    key = ("rgat.a", COMPUTED_SOURCES[source])
    assert [(entry.importer, entry.expression) for entry in ImportGraph(root).unresolved] == [key]
    graph = ImportGraph(root, {key: ("rgat.b",)})
    assert graph.unresolved == []
    assert graph.imports == [Import("rgat.a", "rgat.b", 1)]
    assert graph.to_the_right(["a", "b", "__init__"]) == graph.imports
    with pytest.raises(AssertionError, match=r"rgat\.c, which rgat\.a is said to import, is not a module"):
        ImportGraph(root, {key: ("rgat.c",)})


@pytest.mark.parametrize(
    "source",
    [
        "import numpy",
        "import rgat_other.b",
        "import_module('numpy')",
        "import_module(f'torch.{name}')",
        "raise ValueError(f'rgat.{name} must be a number')",
        "register(name='rgat.RelationalGraph')",
    ],
)
def test_the_checker_ignores_other_packages_and_other_texts(tmp_path, source):
    graph = ImportGraph(written(tmp_path, {"a.py": source, "b.py": ""}))
    assert (graph.imports, graph.unresolved) == ([], [])


@pytest.mark.parametrize(
    "source", ["import rgat.b", "def f():\n    from rgat.b import x", "importlib.import_module('rgat.b')"]
)
def test_an_import_to_the_right_is_caught(tmp_path, source):
    graph = ImportGraph(written(tmp_path, {"a.py": source, "b.py": ""}))
    assert [entry.target for entry in graph.to_the_right(["a", "b", "__init__"])] == ["rgat.b"]
    assert graph.to_the_right(["b", "a", "__init__"]) == []
    assert [entry.target for entry in graph.to_the_right(["b", "a", "__init__"], {("a", "b")})] == ["rgat.b"]
    with pytest.raises(ValueError, match="'b' is not in list"):
        graph.to_the_right(["a", "__init__"])


CYCLES = [
    (
        {
            "p/a.py": "from rgat.p import b",
            "p/b.py": "def f():\n    from .c import x",
            "p/c.py": "import_module('rgat.p.a')",
            "d.py": "import rgat.p.a",
            "e.py": "from rgat.d import x",
        },
        [("rgat.p.a", "rgat.p.b", "rgat.p.c")],
    ),
    ({"p/__init__.py": "from rgat.p.a import y", "p/a.py": "from rgat.p import x"}, [("rgat.p", "rgat.p.a")]),
    ({"p/__init__.py": "from rgat.p.a import x", "p/a.py": "from rgat.p.b import x", "p/b.py": ""}, []),
    (
        {"p/a.py": "from rgat.q import b", "q/b.py": "if TYPE_CHECKING:\n    import rgat.p.a"},
        [("rgat.p.a", "rgat.q.b")],
    ),
    ({"a.py": "import rgat.a"}, [("rgat.a",)]),
    (
        {"a.py": "import rgat.b", "b.py": "import rgat.a", "c.py": "import rgat.d", "d.py": "import rgat.c, rgat.a"},
        [("rgat.a", "rgat.b"), ("rgat.c", "rgat.d")],
    ),
]


@pytest.mark.parametrize(("files", "cycles"), CYCLES)
def test_a_cycle_is_caught_wherever_it_is(tmp_path, files, cycles):
    assert ImportGraph(written(tmp_path, files)).cycles() == cycles


def test_import_needs_only_torch_and_numpy():
    code = (
        "import sys\n"
        "blocked = 'typer rich numba pyoxigraph rdkit optuna scipy sklearn matplotlib pandas ray'.split()\n"
        "blocked += ['fastapi', 'uvicorn']\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import rgat, rgat.nn, rgat.ops\n"
        "print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr
