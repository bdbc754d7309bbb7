"""From data to a model that people keep: fit, predict, explain, save, load."""

from rgat.predictor.fitting import fit
from rgat.predictor.folder import load
from rgat.predictor.predictions import Predictions
from rgat.predictor.predictor import FittedModel, GraphModel, NodeModel

__all__ = ["FittedModel", "GraphModel", "NodeModel", "Predictions", "fit", "load"]
