"""The stages of a fit, as its progress shows them."""

from __future__ import annotations

from rgat.training.distributed import processes

CHOICE, SEARCH, CROSS_VALIDATION = "choice", "search", "cross-validation"  # stages
TRAINING, EVALUATION, COMPARISON = "training", "evaluation", "comparison"


def stage_names(is_searched: bool, has_folds: bool, comparison: bool, has_choice: bool) -> list[str]:
    """Return the stages of a fit."""
    is_compared = comparison and processes().number == 1
    due = {CHOICE: has_choice and is_compared, SEARCH: is_searched, CROSS_VALIDATION: has_folds, TRAINING: True}
    due |= {EVALUATION: True, COMPARISON: is_compared}
    return [name for name, is_due in due.items() if is_due]
