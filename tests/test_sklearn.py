"""The estimators follow scikit-learn's conventions, and work in its cross-validation, grid search and pipelines."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the estimators need scikit-learn")

from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import rgat
from rgat.sklearn import MoleculeEstimator, MoleculeRegressor, NodeEstimator, NodeRegressor, read_graph

QUICK = {"model": "RGCN", "max_epochs": 1, "hidden_channels": 8}
ESTIMATORS = [MoleculeEstimator, NodeEstimator, MoleculeRegressor, NodeRegressor]

# Checks of scikit-learn that need no table of numbers. All others call `fit` with one, and texts are needed here.
CHECKS = (
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)
# Checks that call `fit`: those below pass where the table of numbers that they pass is translated to examples.
WITH_TABLES = (
    "check_dict_unchanged",
    "check_dont_overwrite_parameters",
    "check_estimators_fit_returns_self",
    "check_estimators_overwrite_params",
    "check_estimators_pickle",
    "check_estimators_unfitted",
    "check_fit_check_is_fitted",
    "check_fit_idempotent",
    "check_fit_score_takes_y",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_pipeline_consistency",
)


@pytest.fixture(scope="module")
def molecules():
    """Return SMILES, and which have a fluorine atom."""
    smiles = rgat.data.load("molecules").graph_names[:60]
    return list(smiles), np.array(["yes" if "F" in text else "no" for text in smiles])


@pytest.fixture(scope="module")
def institute():
    """Return the graph, names of labelled nodes and their classes."""
    data = rgat.data.load("institute")
    return data, np.array(data.node_names)[data.train], np.array(data.classes)[data.labels[data.train]]


class Translated(MoleculeEstimator):
    """The estimator with a row of numbers in place of a SMILES: each number tells the length of a branch."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags

    def fit(self, X, y):
        return super().fit(translate(X), np.asarray(y))

    def predict_proba(self, X):
        return super().predict_proba(translate(X))


class TranslatedRegressor(MoleculeRegressor):
    """The regressor with a row of numbers in place of a SMILES."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags

    def fit(self, X, y):
        return super().fit(translate(X), np.asarray(y))

    def predict(self, X):
        return super().predict(translate(X))


def translate(table):
    rows = np.asarray(table, dtype=float).reshape(len(table), -1)
    lengths = np.clip(rows * 2 + 5, 0, 9).astype(int)
    return ["C" + "".join(f"N({'C' * n}O)" for n in row[:3]) + "C" for row in lengths]


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_estimator_passes_a_check_of_scikit_learn(estimator, name):
    getattr(estimator_checks, name)(estimator.__name__, estimator())


@pytest.mark.parametrize("name", WITH_TABLES)
@pytest.mark.parametrize("estimator", [Translated, TranslatedRegressor])
def test_the_estimator_of_translated_tables_passes_a_check_of_scikit_learn(estimator, name):
    getattr(estimator_checks, name)(estimator.__name__, estimator(**QUICK))


def test_a_regressor_predicts_numbers_of_molecules_in_their_unit(molecules):
    smiles, _ = molecules
    lengths = 1000.0 + np.array([len(text) for text in smiles])
    estimator = MoleculeRegressor(**QUICK)
    assert is_regressor(estimator)
    assert cross_val_score(estimator, smiles, lengths, cv=2, error_score="raise", scoring="r2").shape == (2,)
    predicted = estimator.fit(smiles, lengths).predict(smiles)
    assert predicted.shape == (60,)
    assert 1000 < predicted.min() <= predicted.max() < 1100
    assert estimator.predictor_.predict(smiles[:2]).intervals["number"].shape == (2, 2)
    table = np.stack([lengths, -lengths], axis=1)
    table[3, 1] = np.nan
    several = MoleculeRegressor(**QUICK).fit(smiles, table).predict(smiles[:7])
    assert several.shape == (7, 2)
    assert (several[:, 0] > 1000).all()
    assert (several[:, 1] < -1000).all()


def test_a_regressor_predicts_numbers_of_nodes(institute):
    data, names, _ = institute
    numbers = np.arange(len(names)) + 500.0
    estimator = NodeRegressor(data, **QUICK).fit(names, numbers)
    assert (estimator.predict(names[:5]) > 400).all()
    assert estimator.score(names, numbers) <= 1
    assert NodeRegressor(data, **QUICK).fit(names, np.stack([numbers, numbers], 1)).predict(names[:5]).shape == (5, 2)


def test_probabilities_of_nodes_follow_the_classes(institute):
    data, names, classes = institute
    estimator = NodeEstimator(data, **QUICK).fit(names, classes)
    assert estimator.classes_.tolist() == sorted(set(classes))
    probabilities = estimator.predict_proba(names[:5])
    assert probabilities.sum(1) == pytest.approx(np.ones(5))
    assert estimator.predict(names[:5]).tolist() == estimator.classes_[probabilities.argmax(1)].tolist()
    assert 0 <= estimator.score(names, classes) <= 1
    assert is_classifier(estimator)
    assert estimator.predictor_.predict(names[:5], coverage=0.8).sets["class"].shape == (5, 4)
    copy = clone(estimator)
    assert copy.graph is data  # a large graph is not copied
    assert not hasattr(copy, "predictor_")


def test_nodes_in_a_grid_search(institute):
    data, names, classes = institute
    search = GridSearchCV(NodeEstimator(data, **QUICK), {"hidden_channels": [4, 8]}, cv=2, error_score="raise")
    search.fit(names[:80], classes[:80])
    assert search.best_params_["hidden_channels"] in (4, 8)
    assert search.best_estimator_.predictor_.config["hidden_channels"] == search.best_params_["hidden_channels"]


def test_molecules_in_cross_validation_and_a_pipeline(molecules):
    smiles, labels = molecules
    pipeline = make_pipeline(FunctionTransformer(lambda column: [text.strip() for text in column]), MoleculeEstimator())
    pipeline.set_params(**{f"moleculeestimator__{name}": value for name, value in QUICK.items()})
    padded = [f" {text} " for text in smiles]
    scores = cross_val_score(pipeline, padded, labels, cv=2, error_score="raise", scoring="roc_auc")
    assert scores.shape == (2,)
    assert not np.isnan(scores).any()


def test_several_classes_and_several_labels(molecules):
    smiles, labels = molecules
    sizes = np.minimum([len(text) // 8 for text in smiles], 3) + 10
    estimator = MoleculeEstimator(**QUICK).fit(np.array(smiles, dtype=object)[:, None], sizes)
    assert estimator.classes_.tolist() == sorted(set(sizes))
    assert estimator.predict_proba(smiles).sum(1) == pytest.approx(np.ones(len(smiles)))
    assert set(estimator.predict(smiles)) <= set(sizes)
    table = np.stack([labels == "yes", [text.count("N") > 0 for text in smiles]], axis=1).astype(float)
    table[0, 1] = np.nan
    several = MoleculeEstimator(**QUICK).fit(smiles, table)
    assert several.predict_proba(smiles[:7]).shape == several.predict(smiles[:7]).shape == (7, 2)
    assert 0 <= several.score(smiles[1:], table[1:]) <= 1


def test_a_graph_of_files_has_no_labels(tmp_path):
    lines = [f"<http://x/{n}> <http://x/{'red' if n % 2 else 'blue'}> <http://x/{n // 4}a> .\n" for n in range(40)]
    (tmp_path / "dump.nt").write_text("".join(lines))
    graph = read_graph(tmp_path / "dump.nt")
    assert graph.classes == ()
    assert "inverse of <http://x/red>" in graph.relation_names
    names = [f"http://x/{n}" for n in range(40)]
    estimator = NodeEstimator(graph, **QUICK).fit(names, np.arange(40) % 2)
    assert estimator.predict(names[:3]).dtype == np.int64


ERRORS = [
    (["CCO", 1], ["a", "b"], "`X` must be texts, one for each example, got an array of shape"),
    (["CCO", "C?"], ["a", "b"], r'`X` must be SMILES, got "C\?"; leave it out'),
    (["CCO", "C"], ["a", "a"], "`y` must be of two classes or more, got 1 class"),
    (["CCO", "C"], ["a"], "`y` must be one class for each of 2 examples"),
    (["CCO", "C"], [0.5, 1.0], "`y` must be classes, got the number 0.5"),
    (["CCO", "C"], [np.nan, 1.0], "`y` must be a class for each example, got NaN"),
    (["CCO", "C"], [[0, 1], [2, 0]], "`y` must be 0, 1 or NaN for each label of 2 molecules"),
]


NUMBER_ERRORS = [
    (["CCO", "C"], ["a", "b"], "`y` must be numbers, one or a row of them for each of 2 examples, got <U1 of shape"),
    (["CCO", "C"], [1.0], "`y` must be numbers, one or a row of them for each of 2 examples"),
    (["CCO", "C"], [1.0, np.nan], "`y` must be finite numbers, got NaN or an infinite one"),
    (["CCO", "C"], [1.0, np.inf], "`y` must be finite numbers"),
    (["CCO", "C"], [[1.0, np.nan], [2.0, np.nan]], "`y` must be finite numbers"),
    (["CCO", "C"], [2.0, 2.0], "`y` must be numbers that differ, got one number for all examples"),
    (["CCO", "C?"], [1.0, 2.0], r'`X` must be SMILES, got "C\?"; leave it out'),
]


@pytest.mark.parametrize(("smiles", "numbers", "sentence"), NUMBER_ERRORS)
def test_wrong_numbers_are_refused(smiles, numbers, sentence):
    with pytest.raises(ValueError, match=sentence):
        MoleculeRegressor(**QUICK).fit(smiles, numbers)


@pytest.mark.parametrize(("smiles", "labels", "sentence"), ERRORS)
def test_wrong_tables_are_refused(smiles, labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        MoleculeEstimator(**QUICK).fit(smiles, labels)


def test_wrong_graphs_nodes_and_molecules_are_refused(institute, molecules):
    with pytest.raises(ValueError, match=r"`graph` must be a graph, such as read_graph\(files\) returns, got None"):
        NodeEstimator().fit(["a", "b"], [0, 1])
    with pytest.raises(ValueError, match="got nobody, which it does not have"):
        NodeEstimator(institute[0]).fit(["nobody", "b"], [0, 1])
    with pytest.raises(NotFittedError):
        MoleculeEstimator().predict(["CCO"])
    estimator = MoleculeEstimator(**QUICK).fit(*molecules)
    with pytest.raises(ValueError, match=r'`X` must be SMILES, got "C\?"'):
        estimator.predict(["CCO", "C?"])
