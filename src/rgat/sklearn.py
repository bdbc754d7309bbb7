"""Estimators with the interface of scikit-learn, for its cross-validation, grid search and pipelines.

They fit a predictor as `rgat.fit` does, which is then in ``predictor_``: its ``predict`` also gives sets and distances.

Examples:
    >>> from rgat.data import load
    >>> from rgat.sklearn import MoleculeEstimator
    >>> smiles = load("molecules").graph_names
    >>> is_fluoride = ["F" in text for text in smiles]
    >>> estimator = MoleculeEstimator(max_epochs=1, hidden_channels=16).fit(smiles[:200], is_fluoride[:200])
    >>> estimator.predict_proba(smiles[200:]).shape
    (120, 2)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.checks import check_seed
from rgat.data import MISSING, NodeData
from rgat.data.molecules.smiles import parse_smiles, store_molecules
from rgat.data.molecules.table import molecule_data
from rgat.data.rdf.features import AUTO
from rgat.data.rdf.graph import assemble
from rgat.data.rdf.knowledge_graph import load_triples
from rgat.predictor import MoleculePredictor, NodePredictor, fit
from rgat.predictor.validation import VALID_SHARE

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError("`rgat.sklearn` needs scikit-learn; install it with `pip install 'rgat[baselines]'`") from error

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


class _Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators share: parameters, and predictions from the predictor's probabilities."""

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy that shares its parameters: a graph may be large, and nothing changes it."""
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        tags.non_deterministic = False
        return tags

    def _fit_options(self) -> dict[str, Any]:
        """Return the arguments of `rgat.fit`."""
        check_seed(self.random_state)
        named = {name: getattr(self, name) for name in ("model", "max_epochs", "hidden_channels", "learning_rate")}
        options = {name: value for name, value in named.items() if value is not None} | dict(self.options or {})
        given = {"ensemble": self.ensemble, "seed": self.random_state, "device": self.device}
        return {"comparison": False} | options | given

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the most probable class of each example; of several labels, 1 where it is more probable than not."""
        probabilities = self.predict_proba(X)
        if self.classes_ is None:
            return np.asarray(probabilities >= 0.5, dtype=np.int64)
        predicted: Array = self.classes_[probabilities.argmax(1)]
        return predicted


def _as_names(given: Any) -> list[str]:
    """Return the names or SMILES of a list, an array, a column or a table of one column."""
    table = np.asarray(given, dtype=object)
    if table.ndim == 2 and table.shape[1] == 1:
        table = table[:, 0]
    if table.ndim != 1 or not all(isinstance(name, str) for name in table):
        raise ValueError(f"`X` must be texts, one for each example, got an array of shape {list(np.shape(given))}")
    return [str(name) for name in table]


def _as_classes(y: Any, count: int) -> tuple[Array, NDArray[np.int64]]:
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


def _held_out(classes: NDArray[np.int64], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return positions to learn from, and a tenth to validate on: at least one of each class that has two or more."""
    order = np.random.default_rng(seed).permutation(len(classes))
    is_valid = np.zeros(len(classes), dtype=bool)
    for each in np.unique(classes):
        own = order[classes[order] == each]
        is_valid[own[: max(round(VALID_SHARE * len(own)), int(len(own) > 1))]] = True
    return torch.from_numpy(np.flatnonzero(~is_valid)), torch.from_numpy(np.flatnonzero(is_valid))


class NodeEstimator(_Estimator):
    """Classifies nodes of a graph: ``X`` are their names, ``y`` their classes.

    The nodes that are not given to ``fit`` remain in the graph, without their labels. Cross-validation inside the given
    nodes finds the number of epochs and calibrates, as in `rgat.fit`.

    Args:
        graph: what `read_graph`, `rgat.data.from_rdf` or `rgat.data.load` returns; its labels are not used.
        model: a name in the paper's tables; None takes the default, as for all options below.
        ensemble: number of models whose outputs are averaged.
        max_epochs: at most so many epochs.
        hidden_channels: units of the hidden layer.
        learning_rate: of Adam.
        options: other options of `rgat.fit`.
        random_state: the seed of everything random.
        device: where to train.

    Examples:
        >>> import numpy as np
        >>> from rgat.data import load
        >>> from rgat.sklearn import NodeEstimator
        >>> data = load("institute")
        >>> names, labels = np.array(data.node_names), np.array(data.classes)[data.labels]
        >>> estimator = NodeEstimator(data, model="RGCN", max_epochs=2).fit(names[data.train], labels[data.train])
        >>> estimator.predict(names[data.test]).shape
        (60,)
    """

    def __init__(
        self,
        graph: NodeData | None = None,
        *,
        model: str | None = None,
        ensemble: int = 1,
        max_epochs: int | None = None,
        hidden_channels: int | None = None,
        learning_rate: float | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: int = 0,
        device: str = "cpu",
    ) -> None:
        self.graph, self.model, self.ensemble, self.max_epochs = graph, model, ensemble, max_epochs
        self.hidden_channels, self.learning_rate, self.options = hidden_channels, learning_rate, options
        self.random_state, self.device = random_state, device

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit a predictor to labelled nodes."""
        if not isinstance(self.graph, NodeData):
            raise ValueError(f"`graph` must be a graph, such as read_graph(files) returns, got {self.graph!r}")
        names = _as_names(X)
        self.classes_, numbers = _as_classes(y, len(names))
        known = {name: node for node, name in enumerate(self.graph.node_names)}
        ids = []
        for name in names:
            node = known.get(name, known.get(f"<{name}>"))
            if node is None:
                raise ValueError(f"`X` must be names of nodes of the graph, got {name}, which it does not have")
            ids.append(node)
        train, none = torch.tensor(ids), torch.empty(0, dtype=torch.long)
        labels = torch.full((len(self.graph.node_names),), MISSING)
        labels[train] = torch.from_numpy(numbers)
        classes = tuple(map(str, self.classes_.tolist()))
        fields: dict[str, Any] = {"labels": labels, "classes": classes, "train": train, "valid": none, "test": none}
        self.predictor_ = fit(dataclasses.replace(self.graph, **fields), **self._fit_options())
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities of the classes, ``[n, classes]``."""
        check_is_fitted(self)
        assert isinstance(self.predictor_, NodePredictor)
        return self.predictor_.predict_proba(_as_names(X))


class MoleculeEstimator(_Estimator):
    """Classifies molecules: ``X`` are SMILES, ``y`` their classes, or 0, 1 and NaN in columns of several labels.

    A tenth of the given molecules is held out, for the number of epochs and calibration. More than two classes are
    learned as one task per class, whose probabilities are scaled to a sum of one.

    Args:
        model: a name in the paper's tables; None takes the default, as for all options below.
        ensemble: number of models whose outputs are averaged.
        max_epochs: at most so many epochs.
        hidden_channels: units of each relational layer.
        learning_rate: of Adam.
        options: other options of `rgat.fit`.
        random_state: the seed of everything random.
        device: where to train.

    Examples:
        >>> from sklearn.model_selection import cross_val_score
        >>> from rgat.data import load
        >>> from rgat.sklearn import MoleculeEstimator
        >>> smiles = load("molecules").graph_names[:120]
        >>> is_fluoride = ["F" in text for text in smiles]
        >>> estimator = MoleculeEstimator(max_epochs=1, hidden_channels=16)
        >>> cross_val_score(estimator, smiles, is_fluoride, cv=2, scoring="roc_auc").shape
        (2,)
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        ensemble: int = 1,
        max_epochs: int | None = None,
        hidden_channels: int | None = None,
        learning_rate: float | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: int = 0,
        device: str = "cpu",
    ) -> None:
        self.model, self.ensemble, self.max_epochs = model, ensemble, max_epochs
        self.hidden_channels, self.learning_rate, self.options = hidden_channels, learning_rate, options
        self.random_state, self.device = random_state, device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit a predictor to labelled molecules."""
        smiles = _as_names(X)
        strata, labels, tasks = self._read_labels(y, len(smiles))
        options = self._fit_options()
        molecules = [parse_smiles(text, relaxed=True) if text.strip() else None for text in smiles]
        if None in molecules:
            raise ValueError(f'`X` must be SMILES, got "{smiles[molecules.index(None)]}"; leave it out')
        parts = (*_held_out(strata, self.random_state), torch.empty(0, dtype=torch.long))
        data = molecule_data("molecules", smiles, store_molecules(molecules), labels, tasks, parts, {})
        self.predictor_ = fit(data, **options)
        return self

    def _read_labels(self, y: Any, count: int) -> tuple[NDArray[np.int64], torch.Tensor, list[str]]:
        """Return what to stratify by, labels ``[n, tasks]`` and the names of the tasks; note the classes."""
        table = np.asarray(y)
        if table.ndim == 2:
            values = table.astype(np.float64)
            if len(table) != count or not (np.isnan(values) | np.isin(values, (0, 1))).all():
                raise ValueError(f"`y` must be 0, 1 or NaN for each label of {count} molecules, got something else")
            labels = torch.from_numpy(np.where(np.isnan(values), MISSING, values).astype(np.int64))
            self.classes_ = None
            return (labels == 1).any(1).long().numpy(), labels, [f"label {i}" for i in range(table.shape[1])]
        self.classes_, numbers = _as_classes(y, count)
        number = torch.from_numpy(numbers)
        if len(self.classes_) == 2:
            return numbers, number[:, None], [str(self.classes_[1])]
        return numbers, torch.nn.functional.one_hot(number), list(map(str, self.classes_.tolist()))

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities of the classes, ``[n, classes]``, or of each label, ``[n, labels]``."""
        check_is_fitted(self)
        assert isinstance(self.predictor_, MoleculePredictor)
        smiles = _as_names(X)
        positive = self.predictor_.predict_proba(smiles)
        if np.isnan(positive).any():
            raise ValueError(f'`X` must be SMILES, got "{smiles[int(np.isnan(positive).any(1).argmax())]}"')
        if self.classes_ is None:
            return positive
        if len(self.classes_) == 2:
            return np.concatenate([1 - positive, positive], axis=1)
        return np.asarray(positive / positive.sum(1, keepdims=True))


__all__ = ["MoleculeEstimator", "NodeEstimator", "read_graph"]
