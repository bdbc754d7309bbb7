"""The paper's other systems, and what people try first, behind one interface.

Each is a function ``run(data, seed, **settings)`` that trains the system on the training part of ``data`` and returns
an :class:`Outcome`: its outputs on every part, its settings, and what these were selected on.
"""

from __future__ import annotations

from collections.abc import Callable

from rgat.baselines import bypass, classic, feat, graphconv, multitask, rdf2vec, rgcn, weave, wl
from rgat.baselines.outcome import Outcome

NODE_BASELINES: dict[str, Callable[..., Outcome]] = {
    "FEAT": feat.run,
    "WL": wl.run,
    "RDF2Vec": rdf2vec.run,
    "R-GCN": rgcn.run,
}
GRAPH_BASELINES: dict[str, Callable[..., Outcome]] = {
    "Multitask": multitask.run,
    "Bypass": bypass.run,
    "Weave": weave.run,
    "GraphConv": graphconv.run,
    "logistic regression": classic.logistic_regression,
    "random forest": classic.random_forest,
    "kernel SVM": classic.kernel_svm,
}
# Every seed gives these the same outcome: one run says all.
DETERMINISTIC = ("FEAT", "WL", "logistic regression", "kernel SVM")

__all__ = ["DETERMINISTIC", "GRAPH_BASELINES", "NODE_BASELINES", "Outcome"]
