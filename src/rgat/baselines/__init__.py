"""The paper's other systems, and simple ones beside them, behind one interface.

Each is a function ``run(data, seed, **settings)`` that trains the system on the training part of ``data`` and returns
an `Outcome`: its outputs on every part, its settings, and what these were selected on.

Examples:
    >>> import rgat
    >>> from rgat.baselines import NODE_BASELINES
    >>> outcome = NODE_BASELINES["FEAT"](rgat.data.load("institute"), seed=0)
    >>> outcome.selected_on
    '5-fold cross-validation on the training part, 5 candidates'
"""

from __future__ import annotations

from collections.abc import Callable

from rgat.baselines import classic, feat, graphconv, min_max, multitask, rdf2vec, rgcn, weave, wl
from rgat.baselines.outcome import Outcome

NODE_BASELINES: dict[str, Callable[..., Outcome]] = {
    "FEAT": feat.run,
    "WL": wl.run,
    "RDF2Vec": rdf2vec.run,
    "R-GCN": rgcn.run,
    "min-max kernel": min_max.run,
}
"""The systems that classify nodes, by the names in the tables.

Examples:
    >>> from rgat.baselines import NODE_BASELINES
    >>> sorted(NODE_BASELINES)
    ['FEAT', 'R-GCN', 'RDF2Vec', 'WL', 'min-max kernel']
"""
GRAPH_BASELINES: dict[str, Callable[..., Outcome]] = {
    "Multitask": multitask.run,
    "Bypass": multitask.run_bypass,
    "Weave": weave.run,
    "GraphConv": graphconv.run,
    "logistic regression": classic.logistic_regression,
    "random forest": classic.random_forest,
    "descriptor forest": classic.descriptor_forest,
    "kernel SVM": classic.kernel_svm,
}
"""The systems that classify graphs, by name.

Examples:
    >>> from rgat.baselines import GRAPH_BASELINES
    >>> sorted(name for name in GRAPH_BASELINES if "forest" in name)
    ['descriptor forest', 'random forest']
"""
DETERMINISTIC = ("FEAT", "WL", "min-max kernel", "logistic regression", "kernel SVM")
"""The systems whose outcome no random seed changes, so that they run once.

Examples:
    >>> from rgat.baselines import DETERMINISTIC
    >>> "FEAT" in DETERMINISTIC
    True
"""

__all__ = ["DETERMINISTIC", "GRAPH_BASELINES", "NODE_BASELINES", "Outcome"]
