"""Each arrow of `bytes -> graph -> op -> layer -> model -> training -> ...` is one import direction."""

import ast
import subprocess
import sys
from pathlib import Path

import rgat

ROOT = Path(rgat.__file__).parent
CHAIN = [
    "version",
    "checks",
    "folders",
    "memory",
    "workers",
    "locks",
    "graph",
    "ops",
    "nn",
    "models",
    "data",
    "training",
    "baselines",
    "experiments",
    "predictor",
    "report",
    "cli",
]
# A model never sees a dataset, and data never sees a model: both stand on the graph alone.
FORBIDDEN = {("data", "ops"), ("data", "nn"), ("data", "models"), ("ops", "nn"), ("predictor", "experiments")}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rgat":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("rgat.")]


def test_nothing_imports_to_its_right():
    visited = 0
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if name in ("__init__", "__main__"):
            continue
        for other in imports(path):
            assert CHAIN.index(other) <= CHAIN.index(name), f"{path} imports rgat.{other}"
            assert (name, other) not in FORBIDDEN, f"{path} imports rgat.{other}"
            visited += 1
    assert visited > 15


def test_import_needs_only_torch_and_numpy():
    code = (
        "import sys\n"
        "blocked = 'typer rich numba pyoxigraph rdkit optuna scipy sklearn matplotlib pandas ray'.split()\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import rgat, rgat.nn, rgat.ops\n"
        "print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr
