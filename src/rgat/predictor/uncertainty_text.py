"""Format sets, intervals and distances to the training data for a terminal."""

from __future__ import annotations

import numpy as np

from rgat.predictor.conformal import fewest_scores
from rgat.predictor.predictions import Predictions
from rgat.predictor.predictor import NodePredictor, Predictor
from rgat.predictor.words import counted, titled

MOST_CLASSES = 6  # of a set to print; a file has all


def reliability(predictor: Predictor) -> list[str]:
    """Return sentences about the sets, intervals and distances of the test part; earlier versions have none."""
    report, lines = predictor.report, []
    units = {target.name: target.unit for target in predictor.targets}
    if found := report.get("sets"):
        is_class = isinstance(predictor, NodePredictor) and not predictor.targets
        labels = counted(found["labels"], "test node" if is_class else "test label")
        size = f"a set has {found['size']:.2f} classes on average, and {found['empty']:.1%} are empty"
        held = f"hold the true class of {found['covered']:.1%} of {labels}; {size}"
        lines.append(f"sets of a coverage of {report['coverage']:.0%} {held}")
    for name, found in report.get("intervals", {}).items():
        if found["width"] is None:
            lines.append(f"intervals of {name} {_unbounded(report['coverage'])}")
            continue
        unit = f" {units[name]}" if units.get(name) else ""
        held = f"hold {found['covered']:.1%} of {counted(found['labels'], 'test value')}"
        width = f"{found['width']:.4g}{unit} wide"
        lines.append(
            f"intervals of {name} of a coverage of {report['coverage']:.0%} {held}; they are {width} on average"
        )
    if "far" in report:
        far = f"{report['far']:.1%} of the test part"
        lines.append(f"{far} is further from the training part than 99 % of held-out examples")
    return lines


def _unbounded(coverage: float) -> str:
    needed = f"they need {fewest_scores(coverage)} held-out values, and there are fewer"
    return f"of a coverage of {coverage:.0%} are unbounded: {needed}"


def region_text(predictions: Predictions, number: int, row: int) -> str:
    """Return the set or interval of one question and example, with commas or as "low to high"."""
    region = predictions.regions[number]
    inside = region.inside[row]
    if not region.classes and not np.isfinite(inside).all():
        return "unbounded"
    if not region.classes:
        return f"{inside[0]:.4g} to {inside[1]:.4g}"
    names = [titled(name, predictions.titles) for name, is_in in zip(region.classes, inside, strict=True) if is_in]
    more = f" and {len(names) - MOST_CLASSES} more" if len(names) > MOST_CLASSES else ""
    return ", ".join(names[:MOST_CLASSES]) + more or "none"


def unbounded_sentences(predictions: Predictions) -> list[str]:
    """Return a sentence for each target whose intervals are unbounded."""
    lines = []
    for region in predictions.regions:
        if not region.classes and np.isinf(region.inside).any():
            name = f" of {region.name}" if len(predictions.regions) > 1 else ""
            lines.append(f"intervals{name} {_unbounded(predictions.coverage or 0)}")
    return lines


def warning_sentences(predictions: Predictions) -> list[str]:
    """Return sentences about unbounded intervals, and examples that are unlike the training data, if there are any."""
    lines = unbounded_sentences(predictions)
    unlike = [(name, text) for name, text in zip(predictions.names, predictions.warnings, strict=True) if text]
    if not unlike:
        return lines
    name, text = unlike[0]
    noun = "node" if predictions.exclusive else "molecule"
    are = "is" if len(unlike) == 1 else "are"
    return [
        *lines,
        f"{counted(len(unlike), noun)} of {len(predictions):,} {are} unlike the training data, such as "
        f"{titled(name, predictions.titles)} ({text}): its prediction may be wrong more often than the report says",
    ]
