"""The paper's benchmarks (table 1) and two larger ones: download, verify and load them by name."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from rgat.checks import check_word
from rgat.data.benchmarks.download import DownloadError, Progress, download, extract, lock, sha256
from rgat.data.cache import Arrays, cached, pack_text, unpack_text
from rgat.data.dataset import GraphData, GraphStore, NodeData
from rgat.data.molecules.smiles import BONDS
from rgat.data.molecules.table import distinct, from_smiles, molecule_data
from rgat.data.rdf.knowledge_graph import label_triples
from rgat.data.rdf.labels import LabelSource
from rgat.data.rdf.reader import Triples, read_triples
from rgat.data.splits import random_parts
from rgat.folders import cache_folder


@dataclass(frozen=True)
class Benchmark:
    """A public data set: its URL, the SHA-256 of each file (None where none is known), and counts to check."""

    url: str
    files: dict[str, str | None]
    counts: dict[str, int]
    columns: tuple[str, str] = ("", "")  # of the label tables: node, class
    features: tuple[str, ...] = ()  # of nodes; empty for one-hot input
    max_bytes: int = 1 << 28  # of the download; unpacked files may have eight times as many


def _rdf_files(name: str, *hashes: str) -> dict[str, str | None]:
    """Return the files of graph, training labels and test labels, with their SHA-256 where it is known."""
    files = (f"{name}/{name}_stripped.nt.gz", f"{name}/trainingSet.tsv", f"{name}/testSet.tsv")
    return dict(zip(files, hashes or (None, None, None), strict=True))


_LITERALS = ("types", "degrees", "literals")  # as features of the sets named so
_TOX21 = Benchmark(
    url="https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/tox21.csv.gz",
    files={"tox21/tox21.csv.gz": "48b34e4e59a2bae6f95734cd206c1869ab355f50a5e50bb7371a21f861d5e297"},
    counts={"graphs": 8014, "nodes": 148350, "edges": 154110},
)
_AIFB = Benchmark(
    url="https://data.dgl.ai/dataset/aifb.tgz",
    files=_rdf_files(
        "aifb",
        "ba4191235456e09d8f12a2415f24273b8d7641ffee6001ca9340f02c04d77fea",
        "4960629668c6548215871321e4b6daaee24191f38f41ccfbc4de62016d18c5a7",
        "abe4a9e7c393164996d1fe7250d72ec1f1a7b350583f2dff5d880f60ec04b3b6",
    ),
    counts={"nodes": 8285, "edges": 29043, "relations": 45, "labelled": 176},
    columns=("person", "label_affiliation"),
)
_MUTAG = Benchmark(
    url="https://data.dgl.ai/dataset/mutag.tgz",
    files=_rdf_files(
        "mutag",
        "871f24a766fd377f0adf995f50aea70fd03e4997c6051b3abff3384c08e56ac7",
        "d2fe71b68bb25735465128b4aed50d9b165fa5ab92aa2e221fad3d1cd87b7297",
        "20e69309a037cbf0fb2b52be3eaa6c43888215cbc0b96e8f8bd9e2af55652a3f",
    ),
    counts={"nodes": 23644, "edges": 74227, "relations": 23, "labelled": 340},
    columns=("bond", "label_mutagenic"),
)
BENCHMARKS = {
    "aifb": _AIFB,
    "aifb-literals": replace(
        _AIFB,
        counts={"nodes": 2835, "edges": 20338, "relations": 22, "labelled": 176},
        features=_LITERALS,
    ),
    "mutag": _MUTAG,
    "mutag-literals": replace(
        _MUTAG,
        counts={"nodes": 22540, "edges": 63382, "relations": 9, "labelled": 340},
        features=_LITERALS,
    ),
    "bgs": Benchmark(
        url="https://data.dgl.ai/dataset/bgs.tgz",
        files=_rdf_files("bgs"),
        counts={"nodes": 333845, "edges": 916199, "relations": 103, "labelled": 146},
        columns=("rock", "label_lithogenesis"),
    ),
    "am": Benchmark(
        url="https://data.dgl.ai/dataset/am.tgz",
        files=_rdf_files("am"),
        counts={"nodes": 1666764, "edges": 5988321, "relations": 133, "labelled": 1000},
        columns=("proxy", "label_cateogory"),  # the file's own spelling
        max_bytes=1 << 31,
    ),
    "tox21": _TOX21,
    "tox21-distinct": Benchmark(_TOX21.url, _TOX21.files, {"graphs": 7831, "nodes": 145459, "edges": 151095}),
}
"""The public benchmarks by name: files with their addresses and hashes, expected counts, and how to read them.

Examples:
    >>> from rgat.data import BENCHMARKS
    >>> sorted(BENCHMARKS)
    ['aifb', 'aifb-literals', 'am', 'bgs', 'mutag', 'mutag-literals', 'tox21', 'tox21-distinct']
"""
SPLIT_SEEDS = (122, 123, 124)  # MoleculeNet's


def locate(name: str) -> dict[str, Path]:
    """Return the verified files of a benchmark that are in the folder RGAT_DATA or in the user's cache."""
    located = {}
    for file, expected in BENCHMARKS[name].files.items():
        folders = [Path(os.environ["RGAT_DATA"])] if os.environ.get("RGAT_DATA") else []
        for folder in [*folders, cache_folder() / "data"]:
            if (folder / file).is_file():
                if expected is not None and (actual := sha256(folder / file)) != expected:
                    raise DownloadError(f"{folder / file}: must have the SHA-256 {expected}, got {actual}; replace it")
                located[file] = folder / file
                break
    return located


def fetch(name: str, on_progress: Progress | None = None) -> dict[str, Path]:
    """Return the files of a benchmark; download those that are missing.

    Examples:
        >>> from rgat.data import fetch
        >>> files = fetch("aifb")  # doctest: +SKIP
        >>> fetch("afib")
        Traceback (most recent call last):
            ...
        ValueError: ... got "afib"; did you mean "aifb"?
    """
    check_word("benchmark", name, tuple(BENCHMARKS))
    benchmark = BENCHMARKS[name]
    located = locate(name)
    if missing := _missing(benchmark, located):
        target = cache_folder() / "data"
        if benchmark.url.endswith(".tgz"):
            _fetch_archive(name, benchmark, target, on_progress)
        else:
            for file, expected in missing.items():
                download(benchmark.url, target / file, expected, benchmark.max_bytes, on_progress)
        located = locate(name)
    return located


def _missing(benchmark: Benchmark, located: dict[str, Path]) -> dict[str, str | None]:
    return {file: expected for file, expected in benchmark.files.items() if file not in located}


def _fetch_archive(name: str, benchmark: Benchmark, target: Path, on_progress: Progress | None) -> None:
    archive = target / Path(benchmark.url).name
    with lock(target / f"{name}.fetch"):
        missing = _missing(benchmark, locate(name))
        if not missing:
            return  # another process has downloaded the files meanwhile
        download(benchmark.url, archive, None, benchmark.max_bytes, on_progress)
        members = {Path(file).name: (target / file, expected) for file, expected in missing.items()}
        try:
            extract(archive, members, 8 * benchmark.max_bytes)
        finally:
            archive.unlink(missing_ok=True)


def load_benchmark(name: str, split: int = SPLIT_SEEDS[0], on_progress: Progress | None = None) -> NodeData | GraphData:
    """Return a benchmark after checking its counts.

    Args:
        name: one of ``BENCHMARKS``.
        split: for Tox21, the random seed of the split; MoleculeNet's are 122, 123 and 124.
        on_progress: called with the number of bytes downloaded so far, and in all if known.
    """
    files = fetch(name, on_progress)
    data = _load_molecules(name, files, split) if name.startswith("tox21") else _load_rdf(name, files)
    counts = count(data)
    for word, expected in BENCHMARKS[name].counts.items():
        if counts[word] != expected:
            raise ValueError(f"{name}: must hold {expected:,} {word}, got {counts[word]:,}; the file has changed")
    return data


def count(data: NodeData | GraphData) -> dict[str, int]:
    """Return the sizes of the data as given, with triples or bonds counted once."""
    counts = {"edges": data.provenance["edges"], "relations": data.provenance["relations"]}
    if isinstance(data, GraphData):
        return counts | {"graphs": len(data.graphs), "nodes": len(data.graphs.x)}
    return counts | {"nodes": data.graph.num_nodes, "labelled": len(data.train) + len(data.valid) + len(data.test)}


def _load_rdf(name: str, files: dict[str, Path]) -> NodeData:
    graph, train, test = files.values()

    def build() -> Arrays:
        triples = read_triples(graph)
        texts = {"nodes": pack_text(triples.node_names), "relations": pack_text(triples.relation_names)}
        return {"edges": triples.edges.astype(np.int32), **texts}

    hashes = _hashes(name, files)
    stored = cached(name, next(iter(hashes.values())), {}, build)
    triples = Triples(unpack_text(stored["nodes"]), unpack_text(stored["relations"]), stored["edges"].astype(np.int64))
    benchmark = BENCHMARKS[name]
    node_column, label_column = benchmark.columns
    source = LabelSource(train=train, test=test, node_column=node_column, label_column=label_column)
    data = label_triples(triples, source, benchmark.features, name=name)
    return replace(data, provenance=data.provenance | {"sha256": hashes})


def _hashes(name: str, files: dict[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of each file; `locate` has verified those that are known."""
    return {file: BENCHMARKS[name].files[file] or sha256(path) for file, path in files.items()}


def _load_molecules(name: str, files: dict[str, Path], split: int) -> GraphData:
    (path,) = files.values()

    def build() -> Arrays:
        data = from_smiles(path, relaxed=True)
        store = data.graphs
        return {
            "x": store.x.numpy().astype(np.int8),  # atom features are small integers
            "edge_index": store.edge_index.numpy().astype(np.int32),
            "edge_type": store.edge_type.numpy().astype(np.int8),
            "node_ptr": store.node_ptr.numpy(),
            "edge_ptr": store.edge_ptr.numpy(),
            "labels": data.labels.numpy().astype(np.int8),
            "smiles": pack_text(data.graph_names),
            "tasks": pack_text(data.tasks),
        }

    hashes = _hashes(name, files)
    (content_hash,) = hashes.values()
    stored = cached("tox21", content_hash, {}, build)
    store = GraphStore(
        x=torch.from_numpy(stored["x"]).float(),
        edge_index=torch.from_numpy(stored["edge_index"]).long(),
        edge_type=torch.from_numpy(stored["edge_type"]).long(),
        node_ptr=torch.from_numpy(stored["node_ptr"]),
        edge_ptr=torch.from_numpy(stored["edge_ptr"]),
        num_relations=len(BONDS) + 1,
    )
    names, tasks = unpack_text(stored["smiles"]), tuple(unpack_text(stored["tasks"]))
    labels = torch.from_numpy(stored["labels"]).long()
    if name == "tox21-distinct":
        rows, labels = distinct(names, labels)
        # The public file of distinct molecules has other values for two labels.
        labels[781, tasks.index("SR-MMP")] = 0
        labels[2119, tasks.index("SR-p53")] = -1
        store, names = store.select(rows), [names[row] for row in rows.tolist()]
    parts = random_parts(len(store), split)
    return molecule_data(name, names, store, labels, tasks, parts, {"split": split, "sha256": hashes})
