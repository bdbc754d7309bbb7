"""Run the example in the docstring of every public name."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

PACKAGES = (
    "rgat", "rgat.nn", "rgat.models", "rgat.data", "rgat.data.store", "rgat.sampling", "rgat.training",
    "rgat.predictor", "rgat.ops", "rgat.baselines", "rgat.report", "rgat.sklearn", "rgat.serve",
)  # fmt: skip
NEEDED = {  # libraries of extras
    "rdf": "pyoxigraph", "molecule": "rdkit", "Molecule": "rdkit", "smiles": "rdkit", "FEAT": "sklearn",
    "report": "matplotlib", "serve": "fastapi", "convert(": "pyoxigraph", "sparql": "pyoxigraph",
    "fetch_neigh": "pyoxigraph", "torch_geometric": "torch_geometric", "read_graph(": "pyoxigraph",
}  # fmt: skip
SOURCE = Path(importlib.import_module("rgat").__file__).parent.parent


def public_names():
    """Return all packages and names; those of estimators only where their library is installed."""
    found = [package for package in PACKAGES if package != "rgat.sklearn" or importlib.util.find_spec("sklearn")]
    return [(package, name) for package in found for name in importlib.import_module(package).__all__]


def constant_docstring(module, name):
    """Return the string below the assignment of a constant, wherever the module imports it from."""
    path = SOURCE / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_text()).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return constant_docstring(node.module, name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if name in [getattr(target, "id", None) for target in targets]:
            return after.value.value if isinstance(after, ast.Expr) else ""
    raise AssertionError(f"{module} does not define {name}")


def docstring(package, name):
    value = getattr(importlib.import_module(package), name)
    if inspect.ismodule(value) or inspect.isclass(value) or callable(value):
        return inspect.cleandoc(value.__doc__ or "")
    return inspect.cleandoc(constant_docstring(package, name))


def distinct_docstrings():
    """Return the names of each docstring; some names are exported by two packages."""
    found = {}
    for package, name in public_names():
        found.setdefault(docstring(package, name), []).append(f"{package}.{name}")
    return found


def test_docstrings_are_markdown():
    """The site shows the roles of reStructuredText as they are: write `name` and $formula$."""
    role = re.compile(r":(class|func|meth|mod|attr|math):`|^ *\.\. \w+::", re.MULTILINE)
    paths = list((SOURCE / "rgat").rglob("*.py"))
    assert len(paths) > 150
    assert not [str(path) for path in paths if role.search(path.read_text())]


def test_every_package_with_public_names_is_visited():
    """Backends list what they implement, for the dispatcher; they are not called by name."""
    paths = [path for path in (SOURCE / "rgat").rglob("*.py") if "\n__all__ = " in path.read_text()]
    modules = {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    assert modules - {"rgat.ops.numba.backend", "rgat.ops.triton.backend"} == set(PACKAGES)


def test_every_public_name_has_an_example():
    names = public_names()
    assert len(names) == len(set(names)) > 100
    without = [name for name in names if ">>> " not in docstring(*name)]
    assert not without, f"{len(names)} public names; without an example: {without}"


@pytest.mark.parametrize("text", [pytest.param(text, id=names[0]) for text, names in distinct_docstrings().items()])
def test_the_example_of_a_public_name_runs(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for word, library in NEEDED.items():
        if word in text.partition("Examples:")[2]:
            pytest.importorskip(library, reason=f"the example needs {library}")
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "example"}, "example", None, 0)
    assert any(not example.options.get(doctest.SKIP) for example in test.examples), "no example that runs"
    problems = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=problems.append)
    assert runner.failures == 0, "".join(problems)
