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

from rgat.sklearn.estimators import MoleculeEstimator, MoleculeRegressor, NodeEstimator, NodeRegressor
from rgat.sklearn.inputs import read_graph

__all__ = ["MoleculeEstimator", "MoleculeRegressor", "NodeEstimator", "NodeRegressor", "read_graph"]
