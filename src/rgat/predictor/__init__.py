"""Fit a predictor to a person's own data, then predict, explain, save and load."""

from rgat.predictor.fitting import fit
from rgat.predictor.predictions import Predictions
from rgat.predictor.predictor import MoleculePredictor, NodePredictor, load

__all__ = ["MoleculePredictor", "NodePredictor", "Predictions", "fit", "load"]
