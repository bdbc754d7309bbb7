"""Training: configuration, priors and search, loss, metric, loop, checkpoints, many models at once.

Examples:
    >>> import rgat
    >>> data = rgat.data.load("institute")
    >>> model = rgat.training.build_model(data, seed=0, scope="across")
    >>> result = rgat.training.fit(model, data, rgat.training.Settings(max_epochs=2))
    >>> sorted(result.scores)
    ['test', 'train', 'valid']
"""

from rgat.training.checkpoint import has_checkpoint, load_checkpoint, save_checkpoint
from rgat.training.configuration import Settings, build_model
from rgat.training.loop import fit
from rgat.training.loss import balanced_class_weights, l2_penalty, multi_task_cross_entropy, node_cross_entropy
from rgat.training.many import Job, bytes_needed, fit_many, members_that_fit, plan_stacks
from rgat.training.metric import accuracy, mean_pr_auc, mean_roc_auc, roc_auc, roc_auc_per_task
from rgat.training.run import Epoch, Result
from rgat.training.task import check_parts, graph_logits, node_logits

__all__ = [
    "Epoch",
    "Job",
    "Result",
    "Settings",
    "accuracy",
    "balanced_class_weights",
    "build_model",
    "bytes_needed",
    "check_parts",
    "fit",
    "fit_many",
    "graph_logits",
    "has_checkpoint",
    "l2_penalty",
    "load_checkpoint",
    "mean_pr_auc",
    "mean_roc_auc",
    "members_that_fit",
    "multi_task_cross_entropy",
    "node_cross_entropy",
    "node_logits",
    "plan_stacks",
    "roc_auc",
    "roc_auc_per_task",
    "save_checkpoint",
]
