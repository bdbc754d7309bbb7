"""Read a graph within the memory that is free: whole, or from a store to which large dumps are converted first."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rgat.data import GraphData, NodeData, convert
from rgat.data.files import is_plain_text
from rgat.data.rdf.features import AUTO
from rgat.data.rdf.reader import TripleStream
from rgat.data.store.stored_graph import find_store
from rgat.memory import free_memory
from rgat.predictor.estimates import EMBEDDING_CHANNELS, GraphSize, bytes_of_embeddings, bytes_of_graph, sampling_for
from rgat.predictor.files import check_request, read, refuse_batch_size
from rgat.progress import Progress, Stages
from rgat.training.distributed import processes

CONVERTED = "converted-graph"  # the store, in the folder of the model
LARGEST_GROWTH = 400  # bytes in memory per byte of a compressed dump
SAMPLE = 100_000  # triples from which the size of a dump is estimated
CHOSEN = {"drop_predicates": (), "features": (), "label_predicate": None, "format": None, "skip_invalid": False}


def estimate_size(
    files: Sequence[Path],
    format: str | None = None,  # noqa: A002
    skip_invalid: bool = False,
    num_features: int = 0,
) -> GraphSize | None:
    """Return about how large the graph of some dumps is, from their first triples; None if these do not tell."""
    stream, triples, share = TripleStream(list(files), format, skip_invalid), 0, 0.0
    for batch in stream:
        triples, share = triples + len(batch[0]), stream.share_read()
        if triples >= SAMPLE:
            break
    if not share:
        return None
    nodes = len(stream.node_names()) / share  # at most: later triples name many nodes again
    return GraphSize(int(nodes), int(2 * triples / share + nodes), num_features)


def read_within_memory(
    name: str | None,
    out: Path,
    given: Mapping[str, Any],
    device: torch.device,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = False,
    **files: Any,
) -> tuple[NodeData | GraphData, dict[str, Any]]:
    """Read a data set as `rgat.predictor.files.read` does, and return it with the options by which it fits.

    Dumps that may not fit into memory are converted to a store in the model's folder first. Their size is estimated
    from their first triples, so nothing is read whole before.

    Args:
        name: of a data set, or None.
        out: folder of the model.
        given: options of the model and its training.
        device: to train on.
        resume: use what an interrupted training has converted.
        say: called with each sentence on what was decided.
        progress: show the progress, or who is told of it; see `rgat.data.convert`.
        **files: options of `rgat.predictor.files.read`.
    """
    kind = check_request(name, files.get("rdf"), files.get("smiles"), files)
    for path in [*(files.get("rdf") or ()), files.get("labels"), files.get("smiles")]:
        if path is not None and is_plain_text(Path(path)):
            say(f"{path}: named {Path(path).suffix}, but not compressed; read as it is")
    if is_converted := kind == "rdf" and _converts(files, out, given, resume, say, progress):
        is_auto = files.get("features") == AUTO  # chosen when the graph is used
        files |= CHOSEN | {"rdf": [out / CONVERTED]} | ({"features": AUTO} if is_auto else {})
    store = find_store(list(files["rdf"])) if kind == "rdf" else None
    in_memory = store is None or (
        given.get("fanouts") is None and sampling_for(_size(store, store.x), given, True, device)[1] is None
    )
    data = read(name, in_memory=in_memory, progress=progress, **files)
    if is_converted and in_memory:  # by its exact size it fits
        shutil.rmtree(out / CONVERTED)
    if not isinstance(data, NodeData):
        return data, {}
    sampling, reason = sampling_for(_size(data.graph, data.x), given, data.is_stored, device)
    if reason is not None:
        say(reason)
    refuse_batch_size({**given, **sampling})
    return data, sampling


def _size(graph: Any, x: Any) -> GraphSize:
    return GraphSize(graph.num_nodes, graph.num_edges, 0 if x is None else x.shape[1])


def _converts(
    files: Mapping[str, Any],
    out: Path,
    given: Mapping[str, Any],
    resume: bool,
    say: Callable[[str], None],
    progress: Progress,
) -> bool:
    """Convert dumps that may not fit into memory to a store in the folder of the model, and return whether it did."""
    dumps, store = [Path(path) for path in files["rdf"]], out / CONVERTED
    if find_store(dumps) is not None or processes().number > 1:  # several processes must not write one store
        return False
    if resume and store.exists():
        say(f"graph: read from {store}, to which it was converted")
        return True
    if LARGEST_GROWTH * sum(path.stat().st_size for path in dumps if path.is_file()) < free_memory():
        return False
    chosen: dict[str, Any] = {word: files.get(word, default) for word, default in CHOSEN.items()}
    num_features = int(chosen["features"] not in ((), AUTO))  # at least
    size = estimate_size(dumps, chosen["format"], bool(chosen["skip_invalid"]), num_features)
    if size is None:
        return False
    channels = given.get("embedding_channels") or EMBEDDING_CHANNELS
    needed, free = bytes_of_graph(size) + bytes_of_embeddings(size, channels), free_memory()
    if needed < free:
        return False
    say(
        f"memory: the graph has about {size.num_edges:,} edges and may take {needed / 2**30:.1f} GiB, and "
        f"{free / 2**30:.1f} GiB are free; it is converted to the store {store}, of which only parts are read at a time"
    )
    if store.exists() and find_store(store) is not None:
        shutil.rmtree(store)  # of a training that was killed before it had a result
    converting = progress.part("reading", 0.0, 1.0) if isinstance(progress, Stages) else progress
    convert(dumps, store, **chosen, progress=converting)
    return True
