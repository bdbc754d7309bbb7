"""Classifiers and regressors of nodes and of molecules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rgat.checks import check_seed
from rgat.data import MISSING, NodeData
from rgat.data.molecules.smiles import parse_smiles, store_molecules
from rgat.data.molecules.table import molecule_data
from rgat.data.targets import TargetTable, output_names, standardise, strata
from rgat.predictor import MoleculePredictor, NodePredictor, fit
from rgat.sklearn.inputs import Array, as_classes, as_names, as_numbers, held_out, shaped_as_given

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError("`rgat.sklearn` needs scikit-learn; install it with `pip install 'rgat[baselines]'`") from error


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What all estimators share: clones, tags and the arguments of `rgat.fit`."""

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


class _Classifier(ClassifierMixin):  # type: ignore[misc]
    """Predictions from the predictor's probabilities."""

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the most probable class of each example; of several labels, 1 where it is more probable than not."""
        probabilities = self.predict_proba(X)
        if self.classes_ is None:
            return np.asarray(probabilities >= 0.5, dtype=np.int64)
        predicted: Array = self.classes_[probabilities.argmax(1)]
        return predicted


class _Nodes(_Estimator):
    """Learns from nodes of a graph, which are given by name."""

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

    def _find(self, X: Any) -> tuple[NodeData, torch.Tensor]:  # noqa: N803
        """Return the graph and the given nodes."""
        if not isinstance(self.graph, NodeData):
            raise ValueError(f"`graph` must be a graph, such as read_graph(files) returns, got {self.graph!r}")
        known = {name: node for node, name in enumerate(self.graph.node_names)}
        ids = []
        for name in as_names(X):
            node = known.get(name, known.get(f"<{name}>"))
            if node is None:
                raise ValueError(f"`X` must be names of nodes of the graph, got {name}, which it does not have")
            ids.append(node)
        return self.graph, torch.tensor(ids)

    def _learn(self, graph: NodeData, train: torch.Tensor, labels: torch.Tensor, **fields: Any) -> None:
        """Fit a predictor to the labels of some nodes."""
        none, everywhere = torch.empty(0, dtype=torch.long), torch.full((len(graph.node_names),), MISSING)
        everywhere[train] = labels
        given = {"labels": everywhere, "train": train, "valid": none, "test": none} | fields
        self.predictor_ = fit(dataclasses.replace(graph, **given), **self._fit_options())


class NodeEstimator(_Classifier, _Nodes):
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

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit a predictor to labelled nodes."""
        graph, train = self._find(X)
        self.classes_, numbers = as_classes(y, len(train))
        self._learn(graph, train, torch.from_numpy(numbers), classes=tuple(map(str, self.classes_.tolist())))
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities of the classes, ``[n, classes]``."""
        check_is_fitted(self)
        assert isinstance(self.predictor_, NodePredictor)
        return self.predictor_.predict_proba(as_names(X))


class NodeRegressor(RegressorMixin, _Nodes):  # type: ignore[misc]
    """Predicts numbers of nodes of a graph: ``X`` are names, ``y`` a number, or a row of numbers and NaN, of each.

    Args:
        graph: as for `NodeEstimator`, whose parameters are the same.
        model: a name in the paper's tables.
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
        >>> from rgat.sklearn import NodeRegressor
        >>> data = load("institute")
        >>> names, ages = np.array(data.node_names)[data.train], np.arange(len(data.train)) / 2
        >>> NodeRegressor(data, model="RGCN", max_epochs=2).fit(names, ages).predict(names[:3]).shape
        (3,)
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit a predictor to nodes with numbers."""
        graph, train = self._find(X)
        numbers, targets = as_numbers(y, len(train))
        self._is_column = np.ndim(y) == 1
        values = torch.full((len(graph.node_names), len(targets)), torch.nan, dtype=torch.float64)
        values[train] = numbers
        targets = standardise(TargetTable(targets, values), train)
        fields = {"values": values, "bounds": None, "targets": targets, "classes": tuple(each.name for each in targets)}
        self._learn(graph, train, torch.zeros(len(train), dtype=torch.long), **fields)
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the number of each node, ``[n]``, or its numbers, ``[n, columns]``."""
        check_is_fitted(self)
        return shaped_as_given(self.predictor_.predict(as_names(X)).probabilities, self._is_column)


class _Molecules(_Estimator):
    """Learns from molecules, which are given as SMILES."""

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

    def _learn(
        self, smiles: list[str], groups: Array, labels: torch.Tensor, table: Sequence[str] | TargetTable
    ) -> None:
        """Fit a predictor to molecules, given the names of 0/1 tasks or a table of numbers; hold out a tenth."""
        options = self._fit_options()
        molecules = [parse_smiles(text, relaxed=True) if text.strip() else None for text in smiles]
        if None in molecules:
            raise ValueError(f'`X` must be SMILES, got "{smiles[molecules.index(None)]}"; leave it out')
        parts = (*held_out(groups, self.random_state), torch.empty(0, dtype=torch.long))
        tasks = output_names(table.targets) if isinstance(table, TargetTable) else table
        data = molecule_data("molecules", smiles, store_molecules(molecules), labels, tasks, parts, {})
        if isinstance(table, TargetTable):
            data = dataclasses.replace(data, values=table.values, targets=standardise(table, data.train))
        self.predictor_ = fit(data, **options)

    def _predict(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities of the tasks, or the numbers, ``[n, tasks]``."""
        check_is_fitted(self)
        assert isinstance(self.predictor_, MoleculePredictor)
        smiles = as_names(X)
        found = self.predictor_.predict_proba(smiles)
        if np.isnan(found).any():
            raise ValueError(f'`X` must be SMILES, got "{smiles[int(np.isnan(found).any(1).argmax())]}"')
        return found


class MoleculeEstimator(_Classifier, _Molecules):
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit a predictor to labelled molecules."""
        smiles = as_names(X)
        groups, labels, tasks = self._read_labels(y, len(smiles))
        self._learn(smiles, groups, labels, tasks)
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
        self.classes_, numbers = as_classes(y, count)
        number = torch.from_numpy(numbers)
        if len(self.classes_) == 2:
            return numbers, number[:, None], [str(self.classes_[1])]
        return numbers, torch.nn.functional.one_hot(number), list(map(str, self.classes_.tolist()))

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities of the classes, ``[n, classes]``, or of each label, ``[n, labels]``."""
        positive = self._predict(X)
        if self.classes_ is None:
            return positive
        if len(self.classes_) == 2:
            return np.concatenate([1 - positive, positive], axis=1)
        return np.asarray(positive / positive.sum(1, keepdims=True))


class MoleculeRegressor(RegressorMixin, _Molecules):  # type: ignore[misc]
    """Predicts numbers of molecules: ``X`` are SMILES, ``y`` a number, or a row of numbers and NaN, of each.

    A tenth of the given molecules is held out, for the number of epochs and intervals.

    Args:
        model: a name in the paper's tables; the parameters are those of `MoleculeEstimator`.
        ensemble: number of models whose outputs are averaged.
        max_epochs: at most so many epochs.
        hidden_channels: units of each relational layer.
        learning_rate: of Adam.
        options: other options of `rgat.fit`.
        random_state: the seed of everything random.
        device: where to train.

    Examples:
        >>> from rgat.data import load
        >>> from rgat.sklearn import MoleculeRegressor
        >>> smiles = load("molecules").graph_names[:60]
        >>> estimator = MoleculeRegressor(max_epochs=1, hidden_channels=16).fit(smiles, [len(text) for text in smiles])
        >>> estimator.predict(smiles[:3]).shape
        (3,)
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit a predictor to molecules with numbers."""
        smiles = as_names(X)
        values, targets = as_numbers(y, len(smiles))
        self._is_column = np.ndim(y) == 1
        labels = torch.where(values.isnan(), MISSING, 0)
        groups = np.array(strata(targets, values))
        self._learn(smiles, groups, labels, TargetTable(targets, values))
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the number of each molecule, ``[n]``, or its numbers, ``[n, columns]``."""
        return shaped_as_given(self._predict(X), self._is_column)
