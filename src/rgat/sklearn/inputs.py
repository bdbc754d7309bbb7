"""What people give to the estimators: a graph, names or SMILES, classes or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.data import MISSING, NodeData
from rgat.data.rdf.features import AUTO
from rgat.data.rdf.graph import assemble
from rgat.data.rdf.knowledge_graph import load_triples
from rgat.data.targets import Target
from rgat.predictor.validation import VALID_SHARE

Array = NDArray[Any]
FilePath = str | PathLike[str]


def read_graph(files: FilePath | Sequence[FilePath], format: str | None = None) -> NodeData:  # noqa: A002
    """Read RDF files, or a store, as a graph without labels, for `NodeEstimator`.

    Predicates that state the classes must not be in the files: a model would read the answers from them.

    Examples:
        >>> from pathlib import Path
        >>> from rgat.sklearn import read_graph
        >>> _ = Path("dump.nt").write_text("<http://x.org/a> <http://x.org/cites> <http://x.org/b> .\\n")
        >>> read_graph("dump.nt").node_names
        ('<http://x.org/a>', '<http://x.org/b>')
    """
    triples, empty = load_triples(files, format), torch.empty(0, dtype=torch.long)
    labels = torch.full((len(triples.node_names),), MISSING)
    data = assemble(triples, None, labels, (), [empty] * 3, inverses=True, self_loops=True, name="knowledge graph")
    data.provenance["features"] = AUTO
    return data


def as_names(given: Any) -> list[str]:
    """Return the names or SMILES of a list, an array, a column or a table of one column."""
    table = np.asarray(given, dtype=object)
    if table.ndim == 2 and table.shape[1] == 1:
        table = table[:, 0]
    if table.ndim != 1 or not all(isinstance(name, str) for name in table):
        raise ValueError(f"`X` must be texts, one for each example, got an array of shape {list(np.shape(given))}")
    return [str(name) for name in table]


def as_classes(y: Any, count: int) -> tuple[Array, NDArray[np.int64]]:
    """Return the classes in order, and the number of the class of each example."""
    table = np.asarray(y)
    if table.ndim != 1 or len(table) != count:
        raise ValueError(
            f"`y` must be one class for each of {count} examples, got an array of shape {list(table.shape)}"
        )
    if table.dtype.kind == "f" and not np.isfinite(table).all():
        raise ValueError(
            "`y` must be a class for each example, got NaN or an infinite number; leave these examples out"
        )
    if table.dtype.kind == "f" and (table % 1 != 0).any():
        raise ValueError(f"`y` must be classes, got the number {table[table % 1 != 0][0]}; round it, or make it a text")
    classes, numbers = np.unique(table, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"`y` must be of two classes or more, got {len(classes)} class")
    return classes, numbers.astype(np.int64)


def as_numbers(y: Any, count: int) -> tuple[torch.Tensor, tuple[Target, ...]]:
    """Return the numbers of each example, ``[n, columns]``, NaN where missing, and the targets of the columns."""
    table = np.asarray(y)
    if table.dtype.kind not in "biuf" or table.ndim not in (1, 2) or len(table) != count:
        raise ValueError(
            f"`y` must be numbers, one or a row of them for each of {count} examples, got {table.dtype} of shape "
            f"{list(table.shape)}"
        )
    values = table.astype(np.float64).reshape(count, -1)
    is_missing = np.isnan(values)
    if np.isinf(values).any() or is_missing.all(0).any() or (table.ndim == 1 and is_missing.any()):
        raise ValueError(
            "`y` must be finite numbers, got NaN or an infinite one; leave these examples out, or put several columns "
            "with NaN where a number is missing"
        )
    if (np.nanmax(values, axis=0) == np.nanmin(values, axis=0)).any():
        raise ValueError("`y` must be numbers that differ, got one number for all examples; give more examples")
    names = ["number"] if values.shape[1] == 1 else [f"number {i}" for i in range(values.shape[1])]
    return torch.from_numpy(values), tuple(Target(name, "regression") for name in names)


def shaped_as_given(numbers: Array, is_column: bool) -> Array:
    """Return predicted numbers ``[n, columns]`` in the shape of the numbers that were learned."""
    return np.asarray(numbers[:, 0] if is_column else numbers, dtype=np.float64)


def held_out(classes: NDArray[np.int64], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions to learn from, and a tenth to validate on: at least one of each class that has two or more."""
    order = np.random.default_rng(seed).permutation(len(classes))
    is_valid = np.zeros(len(classes), dtype=bool)
    for each in np.unique(classes):
        own = order[classes[order] == each]
        is_valid[own[: max(round(VALID_SHARE * len(own)), int(len(own) > 1))]] = True
    return torch.from_numpy(np.flatnonzero(~is_valid)), torch.from_numpy(np.flatnonzero(is_valid))
