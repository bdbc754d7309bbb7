"""Training: loss, metric, loop."""

from rgat.training.loop import Epoch, Result, Settings, fit
from rgat.training.loss import balanced_class_weights, l2_penalty, multi_task_cross_entropy, node_cross_entropy
from rgat.training.metric import accuracy, mean_roc_auc, roc_auc, roc_auc_per_task

__all__ = [
    "Epoch",
    "Result",
    "Settings",
    "accuracy",
    "balanced_class_weights",
    "fit",
    "l2_penalty",
    "mean_roc_auc",
    "multi_task_cross_entropy",
    "node_cross_entropy",
    "roc_auc",
    "roc_auc_per_task",
]
