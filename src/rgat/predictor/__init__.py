"""Fit a predictor to a person's own data, then predict, explain, save and load.

Examples:
    >>> from rgat import predictor
    >>> model = predictor.fit("molecules", comparison=False, max_epochs=2)
    >>> model.predict(["CCO"]).columns[:2]
    ('amide', 'acid')
"""

from rgat.predictor.cross_validation import cross_validate
from rgat.predictor.fitting import fit
from rgat.predictor.predictions import Predictions
from rgat.predictor.predictor import MoleculePredictor, NodePredictor, load

__all__ = ["MoleculePredictor", "NodePredictor", "Predictions", "cross_validate", "fit", "load"]
