"""The paper's other systems, and common first choices for molecules, behind one interface.

Each is a function ``run(data, seed, **settings)`` that trains the system on the training part of ``data`` and returns
an :class:`Outcome`: its outputs on every part, its settings, and what these were selected on.
"""

from __future__ import annotations

from collections.abc import Callable

from rgat.baselines import classic, feat, graphconv, multitask, rdf2vec, rgcn, weave, wl
from rgat.baselines.outcome import Outcome

NODE_BASELINES: dict[str, Callable[..., Outcome]] = {
    "FEAT": feat.run,
    "WL": wl.run,
    "RDF2Vec": rdf2vec.run,
    "R-GCN": rgcn.run,
}
GRAPH_BASELINES: dict[str, Callable[..., Outcome]] = {
    "Multitask": multitask.run,
    "Bypass": multitask.run_bypass,
    "Weave": weave.run,
    "GraphConv": graphconv.run,
    "logistic regression": classic.logistic_regression,
    "random forest": classic.random_forest,
    "kernel SVM": classic.kernel_svm,
}
# The seed does not change the outcome of these, so they run once.
DETERMINISTIC = ("FEAT", "WL", "logistic regression", "kernel SVM")

__all__ = ["DETERMINISTIC", "GRAPH_BASELINES", "NODE_BASELINES", "Outcome"]
