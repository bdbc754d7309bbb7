"""`rgat doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform

from rgat.cli.printing import print_table

EXTRAS = (
    ("rdkit", "molecules from SMILES", "molecules"),
    ("pyoxigraph", "knowledge graphs from RDF", "rdf"),
    ("optuna", "hyper-parameter search", "search"),
    ("sklearn", "support vector machines, forests", "baselines"),
    ("gensim", "RDF2Vec", "baselines"),
    ("matplotlib", "charts of a report", "report"),
    ("scipy", "statistics of a report", "report"),
    ("ray", "many machines", "ray"),
    ("onnxscript", "exporting models to ONNX", "onnx"),
    ("onnxruntime", "comparing exported models", "onnx"),
)


def doctor() -> None:
    """Show which backends and libraries this machine can use.

    \b
    Example:
      rgat doctor
    """
    import torch

    from rgat import ops
    from rgat.version import __version__

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [
        ("rgat", __version__),
        ("python", platform.python_version()),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("GPU", torch.cuda.get_device_name() if device == "cuda" else "none that torch can use"),
    ]
    chosen = os.environ.get("RGAT_BACKEND")
    try:
        backend = f"{ops.active_backend(device)} on {device}"
    except ValueError as error:
        backend = f"none: {error}"
    rows.append(
        (
            "backend",
            f"{backend}, {f'as RGAT_BACKEND={chosen} requests' if chosen else 'unless RGAT_BACKEND names another'}",
        )
    )
    for name, purpose in (("numba", "compiled loops on the CPU"), ("triton", "compiled kernels on a GPU")):
        reason = ops.why_not(name)
        rows.append((f"  {name}", f"{purpose}: {'usable' if reason is None else f'not usable: {reason}'}"))
    for package, purpose, extra in EXTRAS:
        is_missing = importlib.util.find_spec(package) is None
        rows.append(
            (package, f"missing: {purpose}; pip install 'rgat[{extra}]'" if is_missing else f"installed: {purpose}")
        )
    print_table((), rows)
