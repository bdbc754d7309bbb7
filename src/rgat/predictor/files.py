"""What the command line does with people's own data: read, fit, predict, explain; one function for each command."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

from rgat.checks import check_seed, check_word
from rgat.data import GraphData, NodeData, from_rdf, from_smiles
from rgat.data import load as load_data
from rgat.data.benchmarks.download import sha256
from rgat.data.files import open_lines
from rgat.experiments.train import Trained
from rgat.experiments.train import train as train_one
from rgat.experiments.variants import VARIANTS
from rgat.locks import locked
from rgat.predictor.configuration import (
    check_model,
    check_options,
    configure,
    flat_config,
    known_options,
    read_option,
    read_toml,
    split_config,
)
from rgat.predictor.explain_molecule import MoleculeExplanation
from rgat.predictor.explain_node import ORDERS, NodeExplanation, RelationImportance
from rgat.predictor.explorer import write_explorer
from rgat.predictor.fitting import fit, fit_trained
from rgat.predictor.forecast import forecast
from rgat.predictor.inspection import describe as describe_data
from rgat.predictor.inspection import find_leaks
from rgat.predictor.predictions import PREDICTED, Predictions
from rgat.predictor.predictor import MoleculePredictor, NodePredictor, Predictor, load
from rgat.predictor.progress import Progress, no_progress
from rgat.predictor.streaming import predict_file
from rgat.predictor.text import molecule_rows, node_rows, node_sentences, relation_rows
from rgat.training.distributed import under_torchrun

__all__ = ["fit", "forecast", "load"]

Path_ = str | PathLike[str]
OPTIONS: dict[str, tuple[str, ...]] = {
    "smiles": ("smiles_column", "tasks", "thresholds", "split", "skip_invalid", "relaxed"),
    "rdf": ("node_column", "label_column", "drop_predicates", "features", "skip_unknown"),
}
LABELLING: dict[str, tuple[str, ...]] = {"smiles": (), "rdf": ("labels", "test_labels", "label_predicate")}
TEST_SHARE = 0.2  # of the labelled nodes, where nobody says which are to be tested


def given_options(config: Path_ | None, options: Sequence[str], **flags: Any) -> dict[str, Any]:
    """What a person asked for: a TOML file, then options, then flags; the last word counts."""
    given = {} if config is None else read_toml(config)
    given |= dict(read_option(text) for text in options)
    return given | {name: value for name, value in flags.items() if value is not None}


def check_given(task: str | None, given: Mapping[str, Any]) -> None:
    """Raise, before the data are read, unless a model of nodes or graphs (None: either) can be what is asked for."""
    if task is not None:
        configure(task, given)
    else:
        check_options(given, (*known_options("node"), *known_options("graph")))
        if "model" in given:
            check_model(given["model"], given)


def check_folder(folder: Path) -> None:
    """Raise, before hours are spent, if a model could not be written there."""
    parent = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"{folder} must be a folder that can be written, but {parent} is none; choose another --out")


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Keep a folder for a model from all other processes while the block runs, or raise if one of them holds it.

    Of the processes that `torchrun` starts together, the first holds it for all.
    """
    check_folder(folder)
    if under_torchrun() and os.environ.get("RANK", "0") != "0":
        yield
        return
    is_new = not folder.exists()
    try:
        with locked(folder / ".lock", str(folder)):
            yield
    finally:
        if is_new:
            with suppress(OSError):  # something was written
                folder.rmdir()


def read_thresholds(texts: Sequence[str]) -> dict[str, float]:
    """Pairs COLUMN=VALUE."""
    found: dict[str, float] = {}
    for text in texts:
        column, _, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f'a threshold must be COLUMN=VALUE with a number, got "{text}"')
        if column in found:
            raise ValueError(f"a column must have one threshold, got {found[column]:g} and {number:g} for {column}")
        found[column] = number
    return found


def read_nodes(named: Sequence[str], path: Path_ | None) -> list[str] | None:
    """Nodes that were named, and those of a file with one per line; None if neither is given."""
    if path is None:
        return list(named) or None
    try:
        with open_lines(Path(path)) as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    found = [*named, *(line.strip() for line in lines if line.strip())]
    if not found:
        raise ValueError(f"{path}: must name at least one node, one per line, got none")
    return found


def read(
    name: str | None,
    *,
    rdf: Sequence[Path_] | None = None,
    smiles: Path_ | None = None,
    labels: Path_ | None = None,
    test_labels: Path_ | None = None,
    label_predicate: str | None = None,
    seed: int = 0,
    **options: Any,
) -> NodeData | GraphData:
    """A data set by name, or of RDF files and labels, or of a table of SMILES; hashes of the files are kept.

    Args:
        name: of a data set.
        rdf: files of the graph.
        smiles: file of the molecules.
        labels: table of nodes and classes.
        test_labels: the same for the test part.
        label_predicate: instead of ``labels``.
        seed: of a random split.
        **options: of :func:`rgat.data.from_rdf` and :func:`rgat.data.from_smiles`.
    """
    if (name is not None) + bool(rdf) + (smiles is not None) != 1:
        raise ValueError("one of a data set's name, --rdf and --smiles must be given; `rgat data list` shows the names")
    check_seed(seed)
    labelling = {"labels": labels, "test_labels": test_labels, "label_predicate": label_predicate}
    kind = "name" if name is not None else "smiles" if smiles is not None else "rdf"
    refuse_foreign(kind, options | labelling)
    if name is not None:
        return load_data(name)
    chosen = {word: options[word] for word in OPTIONS[kind] if word in options}
    if smiles is not None:
        data: NodeData | GraphData = from_smiles(smiles, seed=seed, name=Path(smiles).name, **chosen)
        files = [smiles]
    else:
        if labels is None and label_predicate is None:
            raise ValueError("classes of some nodes must be given: --labels FILE, or --label-predicate IRI")
        if labels is not None and label_predicate is not None:
            raise ValueError("labels must come either from --labels or by --label-predicate, got both")
        parts: dict[str, Any] = {"labels": labels} if test_labels is None else {"train": labels, "test": test_labels}
        files = [*(rdf or ()), *(path for path in (labels, test_labels) if path is not None)]
        data = from_rdf(
            list(rdf or ()),
            **parts,
            label_predicate=label_predicate,
            shares=(1 - TEST_SHARE, 0.0),
            seed=seed,
            name=Path(files[0]).name,
            **chosen,
        )
    data.provenance["sha256"] = {Path(path).name: sha256(Path(path)) for path in files}
    return data


def refuse_foreign(kind: str, given: Mapping[str, Any]) -> None:
    """Raise if an option is given that says nothing about this kind of data, rather than leave it unused."""
    for other, words in OPTIONS.items():
        foreign = [word for word in (*words, *LABELLING[other]) if given.get(word) and given[word] != "random"]
        if other != kind and foreign:
            option = {"thresholds": "threshold", "drop_predicates": "drop"}.get(foreign[0], foreign[0])
            raise ValueError(
                f"--{option.replace('_', '-')} must come with --{other}, got "
                f"{'the name of a data set' if kind == 'name' else f'--{kind}'}; leave it out"
            )


def describe(data: NodeData | GraphData) -> list[str]:
    """What was understood of the data, and warnings."""
    leaks = find_leaks(data) if isinstance(data, NodeData) else []
    return [*describe_data(data), *(f"warning: {leak}" for leak in leaks)]


def train_by_name(
    name: str, out: Path, given: Mapping[str, Any], seed: int, resume: bool
) -> tuple[Trained, dict[str, Any]] | None:
    """Train one model with checkpoints, in one process or those of `torchrun`; None in all but the first."""
    config = {"model": "additive WIRGAT"} | dict(given)
    check_word("model", config["model"], tuple(VARIANTS))
    check_options(given, (*known_options("node"), *known_options("graph")))
    options, settings = split_config(config)
    own = {key: value for key, value in options.items() if key not in VARIANTS[config["model"]]}
    trained = train_one(name, config["model"], out, own, settings, seed, resume=resume, progress=True)
    return None if trained is None else (trained, flat_config(config["model"], own, settings))


def keep_trained(
    trained: Trained, config: dict[str, Any], out: Path, seed: int, comparison: bool, progress: Progress
) -> Predictor:
    """Calibrate and save what ``train_by_name`` trained, and say how good it is; `torchrun` compares with nothing."""
    compares = comparison and not under_torchrun()
    predictor = fit_trained(trained, config, seed, compares, progress, keep=lambda predictor: predictor.save(out))
    predictor.save(out)
    return predictor


def predict(
    predictor: Predictor,
    out: Path_ | None,
    *,
    nodes: Sequence[str] | None = None,
    kind: str | None = None,
    rdf: Sequence[Path_] | None = None,
    predicate: str | None = None,
    smiles: str | None = None,
    smiles_column: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    progress: Progress = no_progress,
) -> tuple[Predictions | None, list[str]]:
    """Judge what was asked for; the predictions, unless they went straight to a file, and what to say of them."""
    of_nodes = {"--node": nodes, "--type": kind, "--rdf": rdf, "--predicate": predicate}
    of_molecules = {"--smiles-column": smiles_column, "--workers": workers, "--resume": resume}
    if isinstance(predictor, NodePredictor):
        if smiles is not None:
            raise ValueError("this is a model of the nodes of a graph: ask for --node, --nodes, --type or --rdf")
        refuse(of_molecules, "a file of molecules")
        if nodes is not None:
            refuse({"--type": kind}, "all nodes, not for those that are named")
        if out is None or Path(out).suffix != ".nt":
            refuse({"--predicate": predicate}, "an --out that ends in .nt")
        found = predictor.predict(nodes, type=kind, rdf=list(rdf) if rdf else None)
    elif smiles is None:
        raise ValueError("this is a model of molecules: give --smiles, a file or a SMILES")
    elif _is_file(smiles):
        refuse(of_nodes, "nodes of a graph")
        if out is None:
            raise ValueError("predictions of a file of molecules must go to a file: --out predictions.csv")
        done = predict_file(
            predictor, smiles, out, smiles_column=smiles_column, workers=workers, resume=resume, progress=progress
        )
        resumed = f", {done.resumed:,} of them resumed" if done.resumed else ""
        bad = f"; {done.invalid:,} are no SMILES, and say so" if done.invalid else ""
        return None, [f"{done.molecules:,} molecules are in {out}{resumed}{bad}"]
    else:
        refuse(of_nodes, "nodes of a graph")
        refuse(of_molecules, "a file of molecules")
        if Path(smiles).suffix in (".csv", ".tsv", ".smi", ".txt", ".gz"):
            raise ValueError(f"{smiles} must be a file that is there, or a SMILES")
        found = predictor.predict([smiles])
        if (found.labels == -1).any():
            raise ValueError(f'"{smiles}" must be a SMILES, or a file that is there; it can be read as neither')
    notes = list(found.notes)
    if out is not None:
        found.save(out, predicate or PREDICTED)
        notes.append(f"{len(found):,} predictions are in {out}")
    return found, notes


def _is_file(text: str) -> bool:
    """Whether a text names a file; a SMILES may be longer than any name."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def refuse(options: Mapping[str, Any], what: str) -> None:
    """Raise if one is given, rather than leave it unused."""
    for option, value in options.items():
        if value:
            raise ValueError(f"{option} must be left out here: it is for {what}")


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
    """The explanation that was asked for; a page is written beside it."""
    check_word("by", by, tuple(ORDERS))
    if isinstance(predictor, MoleculePredictor):
        if smiles is None:
            raise ValueError("this is a model of molecules: give --smiles")
        refuse({"--node": node, "--by": by if by != "strength" else None}, "nodes of a graph")
        found = predictor.explain(smiles, task)
        if page is not None:
            if Path(page).suffix != ".html":
                raise ValueError(f"{page}: a page must go to a file that ends in .html")
            found.save(page)
        return found
    if smiles is not None:
        raise ValueError("this is a model of the nodes of a graph: give --node, or nothing for all relations")
    refuse({"--task": task}, "molecules")
    if node is None:
        refuse({"--by": by if by != "strength" else None}, "the edges of a --node")
    if page is not None:
        write_explorer(predictor, page, node)
    return predictor.explain(node, top=top, by=by)


def told(
    found: NodeExplanation | RelationImportance | MoleculeExplanation, top: int, wide: bool
) -> tuple[list[str], Sequence[str], list[tuple[str, ...]], int]:
    """Sentences, columns, rows, and how many of the columns are text."""
    if isinstance(found, NodeExplanation):
        return node_sentences(found), *node_rows(found, wide), 3
    if isinstance(found, RelationImportance):
        sentence = f"Relations by attention, over {found.nodes:,} labelled nodes; effect: mean change without them."
        return [sentence], ("relation", "attention", "effect, points", "class changes"), relation_rows(found, top), 1
    sentence = f"{found.smiles}: {found.task} positive with probability {found.probability:.1%}"
    return [sentence], ("atom or bond", "attention", "effect, points"), molecule_rows(found, top), 1
