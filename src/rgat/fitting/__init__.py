"""From data to a model that people keep: fit, predict, explain, save, load."""

from rgat.fitting.estimate import fit
from rgat.fitting.fitted import FittedModel, GraphModel, NodeModel
from rgat.fitting.folder import load
from rgat.fitting.predictions import Predictions

__all__ = ["FittedModel", "GraphModel", "NodeModel", "Predictions", "fit", "load"]
