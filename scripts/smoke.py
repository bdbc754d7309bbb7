"""Check an installed rgat, from any folder but a checkout: layers, a knowledge graph, molecules, commands.

    cd "$(mktemp -d)" && python smoke.py

Needs the extras rdf and molecules. Prints the time of the import and a sentence, or ends with an error.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def check_import() -> float:
    """Import rgat after torch; return its seconds. No other heavy library may come with it."""
    import torch  # noqa: F401  (its time is not ours)

    start = time.perf_counter()
    import rgat

    seconds = time.perf_counter() - start
    assert seconds < 2, f"`import rgat` takes {seconds:.1f} s after torch, must be under 2 s"
    heavy = {"numba", "rdkit", "pyoxigraph", "scipy", "sklearn", "pandas", "matplotlib", "typer", "optuna"}
    assert heavy.isdisjoint(sys.modules), f"`import rgat` imports {sorted(heavy & sys.modules.keys())}"
    assert "site-packages" in str(rgat.__file__), f"rgat must be installed, but is {rgat.__file__}"
    return seconds


def check_layer() -> None:
    """Compare a layer with the reference, gradients included."""
    import torch

    from rgat import RelationalGraph, nn, ops

    edges, types = torch.randint(0, 9, (2, 40)), torch.randint(0, 3, (40,))
    graph = RelationalGraph(edges, types, num_nodes=9, num_relations=3)
    conv, x = nn.RGATConv(5, 4, num_relations=3, heads=2, scope="across"), torch.randn(9, 5)
    grads = []
    for word in ("auto", "reference"):
        with ops.backend(word):
            grads.append(torch.autograd.grad(conv(x, graph).tanh().sum(), list(conv.parameters())))
    for grad, expected in zip(*grads, strict=True):
        torch.testing.assert_close(grad, expected, atol=1e-4, rtol=1e-4)


def check_nodes() -> None:
    """Fit, save, load and predict nodes of an RDF file."""
    import rgat
    from rgat.data.synthetic.institute import institute_triples

    triples, groups = institute_triples(num_people=60)
    Path("graph.nt").write_text("".join(f"{s} {p} {o} .\n" for s, p, o in triples))
    rows = [f"{person.strip('<>')}\t{group}\n" for person, group in sorted(groups.items())][:45]
    Path("labels.tsv").write_text("person\tgroup\n" + "".join(rows))
    model = rgat.fit(rgat.data.from_rdf("graph.nt", "labels.tsv"), comparison=False, max_epochs=5)
    model.save("nodes")
    assert len(rgat.load("nodes").predict().names) == 15


def check_molecules() -> None:
    """Fit and predict molecules of a table."""
    import rgat

    rows = [f"{'C' * length}{end},{int(end == 'O')}\n" for length in range(1, 21) for end in ("O", "N")]
    Path("assays.csv").write_text("smiles,alcohol\n" + "".join(rows))
    model = rgat.fit(rgat.data.from_smiles("assays.csv"), comparison=False, max_epochs=5)
    assert model.predict(["CCO", "CCN"]).probabilities.shape == (2, 1)


def check_commands() -> None:
    """Run commands as a person would."""
    rgat = Path(sys.executable).parent / "rgat"
    for arguments in (["--version"], ["doctor"], ["data", "list"], ["predict", "nodes", "--out", "predictions.csv"]):
        done = subprocess.run([rgat, *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"rgat {' '.join(arguments)}: {done.stderr}"
    assert Path("predictions.csv").read_text().count("\n") == 16


if __name__ == "__main__":
    import_seconds = check_import()
    for check in (check_layer, check_nodes, check_molecules, check_commands):
        check()
    print(f"import {import_seconds:.2f} s; layers, nodes, molecules and commands work")
