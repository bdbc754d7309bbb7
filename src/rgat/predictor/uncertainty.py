"""Add sets, intervals and distances to the training data to predictions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rgat.predictor.conformal import COVERAGE, regions
from rgat.predictor.ensemble import Ensemble
from rgat.predictor.predictions import Predictions


def with_uncertainty(
    ensemble: Ensemble,
    predictions: Predictions,
    coverage: float | None,
    hidden: Tensor | None,
    unlike: Sequence[str] | None,
) -> Predictions:
    """Return the predictions with sets and distances to the training data, as far as the model has what they need.

    Args:
        ensemble: the models that predicted.
        predictions: of these.
        coverage: of the sets; None takes the default, where there are sets at all.
        hidden: last hidden layer of each example, NaN where it is not known.
        unlike: what each example has that no training example has, in words.
    """
    found: dict[str, Any] = {}
    held_out = ensemble.calibration.held_out
    if held_out is not None:
        found["coverage"] = COVERAGE if coverage is None else coverage
        questions = ensemble.calibration.questions(predictions.columns)
        found["regions"] = regions(questions, predictions.probabilities, held_out, found["coverage"])
    elif coverage is not None:
        raise ValueError(
            "sets of a coverage must come from a model that has held-out scores, but this one was "
            "written by an earlier version; train it again, or leave `coverage` (--coverage) out"
        )
    if ensemble.familiarity is not None:
        if hidden is None:  # all SMILES are invalid
            hidden = torch.full((len(predictions), ensemble.familiarity.rows.shape[1]), math.nan)
        found |= {"distance": ensemble.familiarity.distances(hidden), "unlike": tuple(unlike or ())}
    return dataclasses.replace(predictions, **found)
