"""The functions behind `rgat train`, `predict` and `explain`: read files, check options, call the predictor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import methodcaller
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rgat.checks import check_seed, check_word
from rgat.data import GraphData, NodeData, from_rdf, from_smiles
from rgat.data import load as load_data
from rgat.data.benchmarks.download import sha256
from rgat.data.files import open_lines
from rgat.data.rdf.endpoint import Endpoint
from rgat.data.rdf.features import AUTO, FEATURES
from rgat.data.store.manifest import NAME as MANIFEST
from rgat.data.store.stored_graph import find_store
from rgat.data.targets import KINDS
from rgat.locks import locked
from rgat.predictor.cross_validation import fold_data, score_folds
from rgat.predictor.explain_molecule import MoleculeExplanation
from rgat.predictor.explain_node import ORDERS, NodeExplanation, RelationImportance
from rgat.predictor.explorer import write_explorer
from rgat.predictor.fitting import fit
from rgat.predictor.fold_results import FIT, FOLDS
from rgat.predictor.folder import NAME as PREDICTOR
from rgat.predictor.predictions import PREDICTED, Predictions
from rgat.predictor.predictor import MoleculePredictor, NodePredictor, Predictor
from rgat.predictor.provenance import ModelRecord
from rgat.predictor.streaming import is_file, predict_file
from rgat.predictor.uncertainty_text import warning_sentences
from rgat.predictor.words import counted
from rgat.progress import Progress, Stages
from rgat.training.checkpoint import NAME as CHECKPOINT
from rgat.training.checkpoint import has_checkpoint
from rgat.training.configuration import read_config, read_option
from rgat.training.distributed import under_torchrun

Path_ = str | PathLike[str]
LABELS = (
    *("labels", "valid_labels", "test_labels", "label_predicate", "node_column", "label_column", "split_column"),
    "skip_unknown",
)
OPTIONS = {
    "smiles": (
        *("smiles_column", "tasks", "task", "censored", "thresholds", "split", "split_column"),
        *("skip_invalid", "relaxed", "fragments"),
    ),
    "rdf": (*LABELS, "split", "task", "censored", "drop_predicates", "features", "skip_invalid", "format"),
}
FOLDS_STAGE = "folds"
TEST_SHARE = 0.2  # of the labelled nodes, if no test labels are given


def given_options(config: Path_ | None, options: Sequence[str], **flags: Any) -> dict[str, Any]:
    """Merge a TOML file, NAME=VALUE options and flags; later ones override earlier ones."""
    given = {} if config is None else read_config(config)
    given |= dict(read_option(text) for text in options)
    return given | {name: value for name, value in flags.items() if value is not None}


@contextmanager
def held_folder(folder: Path, resume: bool = False) -> Iterator[bool]:
    """Lock a model's folder while the block runs, and yield whether the training in it is continued.

    Raises if another process has locked the folder, or if it cannot be written.

    A folder with an interrupted or finished training is refused unless ``resume``, or unless `torchrun` has started the
    command again and the folder has its training. Of the processes that `torchrun`
    starts together, the first holds the lock for all.
    """
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"{folder} must be a folder that can be written, but {parent} is not; choose another --out")
    is_again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    resume = resume or (is_again and (folder / FIT).exists())
    if under_torchrun() and os.environ.get("RANK", "0") != "0":
        yield resume
        return
    is_new = not folder.exists()
    try:
        with locked(folder / ".lock", str(folder)):
            names = (CHECKPOINT, FOLDS, PREDICTOR)
            if not resume and any(has_checkpoint(folder, name) for name in names):
                raise ValueError(
                    f"{folder} must not hold a model or an unfinished training, but does; "
                    "continue it with --resume, or choose another folder"
                )
            if not resume:
                (folder / FIT).unlink(missing_ok=True)  # of a training that was killed before it had a result
            yield resume
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def read_thresholds(texts: Sequence[str]) -> dict[str, float]:
    """Read pairs COLUMN=VALUE."""
    thresholds: dict[str, float] = {}
    for text in texts:
        column, _, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f'a threshold must be COLUMN=VALUE with a number, got "{text}"')
        if column in thresholds:
            raise ValueError(
                f"a column must have one threshold, got {thresholds[column]:g} and {number:g} for {column}"
            )
        thresholds[column] = number
    return thresholds


def read_task(texts: Sequence[str]) -> str | dict[str, str] | None:
    """Read a kind of task for all columns, or pairs COLUMN=KIND."""
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        check_word("task", texts[0], KINDS)
        return texts[0]
    kinds: dict[str, str] = {}
    for text in texts:
        column, equals, kind = text.rpartition("=")
        if not equals or column in kinds:
            raise ValueError(f'--task must be one KIND, or COLUMN=KIND once for each column, got "{text}"')
        check_word(f"task of {column}", kind, KINDS)
        kinds[column] = kind
    return kinds


def read_features(text: str | None, is_own_graph: bool) -> tuple[str | tuple[str, ...], bool]:
    """Return the features to make, or "auto", and whether the model also gets one-hot nodes; read from a list of words.

    "identity" alone is one-hot input. A person's own graph is read with "auto" if nothing is given.
    """
    words = text.split(",") if text else [AUTO] if is_own_graph else []
    if AUTO in words:
        if len(words) > 1:
            raise ValueError(f'--features must be auto alone or a list of features, got "{text}"; leave auto out')
        return AUTO, False
    for word in words:
        check_word("features", word, (AUTO, "identity", *FEATURES))
    features = tuple(word for word in words if word != "identity")
    return features, bool(features) and len(features) < len(words)


def read_nodes(named: Sequence[str], path: Path_ | None) -> list[str] | None:
    """Return the named nodes and those of a file with one per line; None if neither is given."""
    if path is None:
        return list(named) or None
    try:
        with open_lines(Path(path)) as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    nodes = [*named, *(line.strip() for line in lines if line.strip())]
    if not nodes:
        raise ValueError(f"{path}: must name at least one node, one per line, got none")
    return nodes


def read(
    name: str | None,
    *,
    rdf: Sequence[Path_] | None = None,
    smiles: Path_ | None = None,
    seed: int = 0,
    in_memory: bool = True,
    progress: Progress = False,
    **options: Any,
) -> NodeData | GraphData:
    """Load a data set by name, or read RDF files and labels, or a table of SMILES; keep hashes of the files.

    Options are those of `rgat train`, and arguments of `rgat.data.from_rdf` or `rgat.data.from_smiles`.
    """
    check_seed(seed)
    kind = check_request(name, rdf, smiles, options)
    if name is not None:
        return load_data(name)
    chosen = {word: options[word] for word in OPTIONS[kind] if word in options}
    if smiles is not None:
        data: NodeData | GraphData = from_smiles(smiles, seed=seed, name=Path(smiles).name, **chosen)
        files = [smiles]
    else:
        labels, valid_labels, test_labels = (chosen.pop(f"{word}labels", None) for word in ("", "valid_", "test_"))
        store = find_store(list(rdf or ()))
        if valid_labels is None and test_labels is None:
            chosen["labels"] = labels
        else:
            chosen |= {"train": labels, "valid": valid_labels, "test": test_labels}
        graph, shares = list(rdf or ()), (1 - TEST_SHARE, 0.0)
        chosen |= {"shares": shares, "seed": seed, "in_memory": in_memory, "progress": progress}
        data = from_rdf(graph, name=Path(graph[0]).name, **chosen)
        graph_files = graph if store is None else [store.path / MANIFEST]  # it has checksums of all others
        files = [*graph_files, *(path for path in (labels, valid_labels, test_labels) if path is not None)]
    data.provenance["sha256"] = {Path(path).name: sha256(Path(path)) for path in files}
    return data


def check_request(
    name: str | None, rdf: Sequence[Path_] | None, smiles: Path_ | None, options: Mapping[str, Any]
) -> str:
    """Return the kind of data that is asked for, "name", "smiles" or "rdf"; raise if options contradict each other."""
    if (name is not None) + bool(rdf) + (smiles is not None) != 1:
        raise ValueError("one of a data set's name, --rdf and --smiles must be given; `rgat data list` shows the names")
    kind = "name" if name is not None else "smiles" if smiles is not None else "rdf"
    _refuse_foreign(kind, options)
    if kind == "rdf":
        has_predicate, store = options.get("label_predicate") is not None, find_store(list(rdf or ()))
        if options.get("labels") is None and not has_predicate and (store is None or store.labels is None):
            raise ValueError("classes of some nodes must be given: --labels FILE, or --label-predicate IRI")
        if options.get("labels") is not None and has_predicate:
            raise ValueError("labels must come either from --labels or by --label-predicate, got both")
    return kind


def _refuse_foreign(kind: str, given: Mapping[str, Any]) -> None:
    """Raise if an option is given that does not apply to this kind of data."""
    for other, words in OPTIONS.items():
        own = OPTIONS.get(kind, ())
        foreign = [word for word in words if word not in own and given.get(word) and given[word] != "keep"]
        if other != kind and foreign:
            option = {"thresholds": "threshold", "drop_predicates": "drop"}.get(foreign[0], foreign[0])
            raise ValueError(
                f"--{option.replace('_', '-')} must come with --{other}, got "
                f"{'the name of a data set' if kind == 'name' else f'--{kind}'}; leave it out"
            )


def refuse_batch_size(options: Mapping[str, Any]) -> None:
    """Raise if a batch size is given for nodes that are trained on together, whose whole graph fits into memory."""
    if options.get("fanouts") is None:
        purpose = "molecules, or for a graph that is sampled; this one fits into memory, so give --fanouts to sample it"
        refuse({"--batch-size": options.get("batch_size")}, purpose)


def read_device(name: str) -> torch.device:
    """Return the device of a name, or raise if there is none."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f'--device must name a device of this machine, such as cpu or cuda, got "{name}"') from error
    return device


def read_fanouts(text: str) -> list[int]:
    """Read fan-outs, one per layer, separated by commas."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise ValueError(f'--fanouts must be numbers separated by commas, such as 20,10, got "{text}"') from error


def train(
    data: NodeData | GraphData, out: Path, stages: Stages | None = None, folds: int = 0, **asked: Any
) -> Predictor:
    """Fit a predictor and save it in a folder, before and after the comparison; ``asked`` are arguments of `rgat.fit`.

    A training that was interrupted in this folder continues. The last of ``stages`` is the one that saves. With
    ``folds``, the fit is also cross-validated, for the report.
    """
    parts = fold_data(data, folds, asked.get("seed", 0)) if folds else []  # before training: some splits have no folds
    keep = methodcaller("save", out)  # the first process writes
    predictor = fit(data, checkpoint=out, keep=keep, progress=stages or False, **asked)
    if parts:
        show = None if stages is None else lambda fold: stages(FOLDS_STAGE, fold / folds, f"fold {fold + 1} of {folds}")
        predictor.report["cross_validation"] = score_folds(parts, on_fold=show, **asked)
    if stages is not None:
        stages(stages.names[-1])
    keep(predictor)
    return predictor


def predict(
    predictor: Predictor,
    out: Path_ | None,
    *,
    node: Sequence[str] | None = None,
    nodes: Path_ | None = None,
    kind: str | None = None,
    rdf: Sequence[Path_] | None = None,
    format: str | None = None,  # noqa: A002
    predicate: str | None = None,
    provenance: bool = False,
    update: str | None = None,
    smiles: str | None = None,
    smiles_column: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    coverage: float | None = None,
    progress: Progress = False,
) -> tuple[Predictions | None, list[str]]:
    """Predict nodes or molecules; return the predictions (None if written to a file in parts), and lines to print."""
    names = read_nodes(node or (), nodes)
    of_nodes: dict[str, Any] = {
        "--node": names,
        "--type": kind,
        "--rdf": rdf,
        "--format": format,
        "--predicate": predicate,
    }
    of_nodes |= {"--provenance": provenance, "--update": update}
    of_molecules = {"--smiles-column": smiles_column, "--workers": workers, "--resume": resume}
    if isinstance(predictor, NodePredictor):
        if smiles is not None:
            raise ValueError("this is a model of the nodes of a graph: give --node, --nodes, --type or --rdf")
        refuse(of_molecules, "a file of molecules")
        if names is not None:
            refuse({"--type": kind}, "all nodes, not for those that are named")
        if (out is None or Path(out).suffix != ".nt") and update is None:
            refuse({"--predicate": predicate, "--provenance": provenance}, "an --out that ends in .nt, or --update")
        if not rdf:
            refuse({"--format": format}, "files of --rdf")
        given: dict[str, Any] = {"rdf": list(rdf) if rdf else None, "format": format, "coverage": coverage}
        predictions = predictor.predict(names, type=kind, **given)
    elif smiles is None:
        raise ValueError("this is a model of molecules: give --smiles, a file or a SMILES")
    else:
        refuse(of_nodes, "nodes of a graph")
        if is_file(smiles):
            if out is None:
                raise ValueError("predictions of a file of molecules must go to a file: --out predictions.csv")
            options: dict[str, Any] = {"smiles_column": smiles_column, "workers": workers, "resume": resume}
            options["coverage"] = coverage
            summary = predict_file(predictor, smiles, out, **options, progress=progress)
            return None, [summary.sentence(out), *summary.unbounded]
        refuse(of_molecules, "a file of molecules")
        if Path(smiles).suffix in (".csv", ".tsv", ".smi", ".txt", ".sdf", ".gz"):
            raise ValueError(f"{smiles} must be an existing file or a SMILES")
        predictions = predictor.predict([smiles], coverage=coverage)
        if np.isnan(predictions.probabilities).any():
            raise ValueError(f'"{smiles}" must be a SMILES or an existing file, and is neither')
    notes = [*predictions.notes, *warning_sentences(predictions)]
    model = predictor.record if provenance and isinstance(predictor, NodePredictor) else None
    if update is not None:
        notes.append(_insert(predictions, update, predicate or PREDICTED, model))
    if out is not None:
        predictions.save(out, predicate or PREDICTED, model)
        notes.append(f"{counted(len(predictions), 'prediction')} written to {out}")
    return predictions, notes


def _insert(predictions: Predictions, url: str, predicate: str, model: ModelRecord | None) -> str:
    """Insert predictions into the default graph behind an endpoint, all in one update; return a line to print."""
    if any(name.startswith("_:") for name in predictions.names):
        raise ValueError("nodes must have IRIs to be updated at an endpoint, got blank nodes; write a file (--out)")
    Endpoint(url).update(f"INSERT DATA {{\n{predictions.triples(predicate, model)}}}")
    return f"{counted(len(predictions), 'prediction')} inserted at {url}"


def refuse(options: Mapping[str, Any], purpose: str) -> None:
    """Raise if an option is given that has no effect here."""
    for option, value in options.items():
        if value:
            raise ValueError(f"{option} must be left out here: it is for {purpose}")


def explain(
    predictor: Predictor,
    *,
    node: str | None = None,
    smiles: str | None = None,
    task: str | None = None,
    top: int = 20,
    by: str = "strength",
    page: Path_ | None = None,
) -> NodeExplanation | RelationImportance | MoleculeExplanation:
    """Return the explanation of a node, of all relations or of a molecule; write it to an HTML page if asked."""
    check_word("by", by, tuple(ORDERS))
    if isinstance(predictor, MoleculePredictor):
        if smiles is None:
            raise ValueError("this is a model of molecules: give --smiles")
        refuse({"--node": node, "--by": by if by != "strength" else None}, "nodes of a graph")
        explanation = predictor.explain(smiles, task)
        if page is not None:
            if Path(page).suffix != ".html":
                raise ValueError(f"{page}: a page must be a file that ends in .html")
            explanation.save(page)
        return explanation
    if smiles is not None:
        raise ValueError("this is a model of the nodes of a graph: give --node, or nothing for all relations")
    if node is None:
        refuse({"--by": by if by != "strength" else None}, "the edges of a --node")
    reasons = predictor.explain(node, top=top, by=by, task=task)
    if page is not None:
        known = reasons if isinstance(reasons, NodeExplanation) else None
        write_explorer(predictor, page, node, known, task)
    return reasons
