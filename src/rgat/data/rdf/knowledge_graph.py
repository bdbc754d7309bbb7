"""Knowledge graphs with labelled nodes: RDF files and a label table to one data set (section 3.1, AIFB and MUTAG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rgat.checks import check_count, check_word
from rgat.data.dataset import MISSING, PARTS, NodeData
from rgat.data.rdf.features import AUTO
from rgat.data.rdf.featurised import featurise
from rgat.data.rdf.graph import assemble
from rgat.data.rdf.labels import (
    FilePath,
    Label,
    LabelSource,
    LabelTable,
    NodeLabels,
    find_labels,
    match_labels,
)
from rgat.data.rdf.node_targets import NodeCells, attach, find_cells
from rgat.data.rdf.reader import Triples, read_triples
from rgat.data.store.labels import label_store
from rgat.data.store.stored_graph import StoredGraph, find_store
from rgat.graph import RelationalGraph
from rgat.progress import Progress, shown


def from_rdf(
    files: FilePath | Sequence[FilePath],
    labels: LabelTable | None = None,
    *,
    skip_invalid: bool = False,
    format: str | None = None,  # noqa: A002
    inverses: bool = True,
    self_loops: bool = True,
    literals: str = "nodes",
    features: Sequence[str] = AUTO,
    blank_nodes: str = "kept",
    drop_predicates: Sequence[str] = (),
    hops: int | None = None,
    name: str = "knowledge graph",
    in_memory: bool = True,
    progress: Progress = False,
    **labelling: Any,
) -> NodeData:
    r"""Read a knowledge graph and the classes of some of its nodes.

    Args:
        files: one or several RDF files, or a store with its relations, features and, unless others are given, labels.
        labels: a TSV or CSV file, or a data frame of pandas or Polars, of nodes and classes, split by ``split_column``
            or else at random, stratified.
        skip_invalid: leave out invalid lines of N-Triples and N-Quads files.
        format: format of the RDF files, if their suffixes do not tell it.
        inverses: add an inverse of every relation.
        self_loops: add a relation from every node to itself.
        literals: "nodes", "dropped", or "features" of their subjects.
        features: node features "types", "degrees" and "literals"; models with features can predict for new nodes. None
            are made by "auto", and `rgat.fit` chooses between one-hot input and features.
        blank_nodes: "kept" or "dropped".
        drop_predicates: IRIs whose triples are left out.
        hops: keep only the receptive field of the labelled nodes in a model of so many layers.
        name: name of the data set.
        in_memory: load the graph of a store; False leaves it on the disk, for sampled training.
        progress: show the progress, or a function to call with each `rgat.progress.Step`.
        **labelling: fields of `rgat.data.rdf.labels.LabelSource`: other labels than ``labels``, columns, the shares and
            seed of a random split, ``skip_unknown``.

    Examples:
        >>> from pathlib import Path
        >>> import rgat
        >>> line, row = "<http://x.org/{}> <http://x.org/cites> <http://x.org/b> .\n", "http://x.org/{}\t{}\n"
        >>> _ = Path("dump.nt").write_text("".join(line.format(n) for n in range(20)))
        >>> _ = Path("labels.tsv").write_text("node\tclass\n" + "".join(row.format(n, n % 2) for n in range(20)))
        >>> data = rgat.data.from_rdf("dump.nt", "labels.tsv", shares=(0.6, 0.2))
        >>> data.classes, len(data.train), data.relation_names
        (('0', '1'), 12, ('<http://x.org/cites>', 'inverse of <http://x.org/cites>', 'self'))
    """
    source = LabelSource(labels, **labelling)
    is_open = features == AUTO and hops is None and in_memory
    literals, features = _check_reading(literals, () if features == AUTO else features, hops)
    if (store := find_store(files)) is not None:
        _refuse_with_store(store, format, literals, blank_nodes, drop_predicates, inverses, self_loops)
        data = _from_store(store, source, features, hops, name, in_memory)
    else:
        with shown(progress, ["reading"]) as stages:
            triples = read_triples(files, format, literals, blank_nodes, drop_predicates, skip_invalid, stages)
            stages("reading", 1.0, f"{len(triples):,} triples, {'graph and features' if features else 'graph'}")
            data = label_triples(triples, source, features, inverses, self_loops, name)
    if is_open and data.x is None:
        data.provenance["features"] = AUTO
    return data if hops is None else prune(data, hops)


def _check_reading(literals: str, features: Sequence[str], hops: int | None) -> tuple[str, Sequence[str]]:
    """Return how to read literals, "nodes" or "dropped", and all features: literals become these from nodes."""
    if hops is not None:
        check_count("hops", hops)
    check_word("literals", literals, ("nodes", "dropped", "features"))
    features = (*features, "literals") if literals == "features" else features
    return "nodes" if "literals" in features else literals, features


def load_triples(files: FilePath | Sequence[FilePath], rdf_format: str | None = None) -> Triples:
    """Return the triples of RDF files, or of a store without features."""
    store = find_store(files)
    if store is None:
        return read_triples(files, rdf_format)
    if store.x is not None:
        raise ValueError(f"{store.path}: must be a store without features here, got one with; convert it without them")
    return store.to_triples()


def _load_store(store: StoredGraph, source: LabelSource, features: Sequence[str], name: str) -> NodeData:
    """Return the data set of a store, in memory."""
    if store.x is not None and (features or source.label_predicate is not None):
        option = "label_predicate" if source.label_predicate is not None else "features"
        raise ValueError(
            f"{store.path}: `{option}` must be left out, because the store has features already; "
            "give it to `rgat data convert`"
        )
    triples, x, provenance = store.to_triples(), store.x, dict[str, Any]()
    if source.is_empty and store.labels is not None:
        labels: Sequence[Label] | NodeCells = _named_labels(store, store.labels)
    else:
        triples, labels = find_all_labels(triples, source)
    if x is not None:
        x = x.to(torch.float32, copy=True)
        provenance = {word: store.provenance[word] for word in ("vocabulary",) if word in store.provenance}
    if "invalid_lines" in store.provenance:
        provenance["invalid_lines"] = store.provenance["invalid_lines"]
    options = (store.manifest.inverses, store.manifest.self_loops)
    data = _attach(triples, x, labels, source, *options, name, provenance)
    return featurise(data, features) if features else data


def _from_store(
    store: StoredGraph, source: LabelSource, features: Sequence[str], hops: int | None, name: str, in_memory: bool
) -> NodeData:
    """Return the data set of a store; raise if an option is given that changes a graph that stays on the disk."""
    if in_memory:
        return _load_store(store, source, features, name)
    for option, is_given in (("features", bool(features)), ("hops", hops is not None)):
        if is_given:
            raise ValueError(
                f"{store.path}: `{option}` must be left out for a graph that stays in its store; "
                "give it to `rgat data convert`, or train on the whole graph"
            )
    store.verify()  # loops read ids of the files without checking each
    return label_store(store, source, name)


def _named_labels(store: StoredGraph, labels: NodeLabels) -> list[Label]:
    names, origin = [*PARTS, None], str(store.path)
    columns = (labels.nodes.tolist(), labels.classes.tolist(), labels.parts.tolist())
    return [
        Label(store.node_names[node], labels.class_names[class_id], names[part], origin)
        for node, class_id, part in zip(*columns, strict=True)
    ]


def _refuse_with_store(
    store: StoredGraph,
    format: str | None,  # noqa: A002
    literals: str,
    blank_nodes: str,
    drop_predicates: Sequence[str],
    inverses: bool,
    self_loops: bool,
) -> None:
    """Raise if an option is given that chooses triples or relations, which is done when a store is written."""
    stored, manifest = store.provenance, store.manifest
    refused = {
        "format": format is not None,
        "literals": literals not in ("nodes", stored.get("literals")),
        "blank-nodes": blank_nodes not in ("kept", stored.get("blank_nodes")),
        "drop": len(drop_predicates) > 0,
        "no-inverses": manifest.inverses and not inverses,
        "no-self-loops": manifest.self_loops and not self_loops,
    }
    for option, is_refused in refused.items():
        if is_refused:
            raise ValueError(
                f"{store.path}: triples and relations must be chosen when a store is written; "
                f"give --{option} to `rgat data convert` instead"
            )


def label_triples(
    triples: Triples,
    source: LabelSource,
    features: Sequence[str] = (),
    inverses: bool = True,
    self_loops: bool = True,
    name: str = "knowledge graph",
) -> NodeData:
    """Return a data set of triples, with the labels and the split of a source and the requested node features."""
    skipped = triples.skipped
    triples, labels = find_all_labels(triples, source)
    provenance = {"invalid_lines": {"count": len(skipped), "first": skipped[0]}} if skipped else {}
    data = _attach(triples, None, labels, source, inverses, self_loops, name, provenance)
    return featurise(data, features) if features else data


def _attach(
    triples: Triples,
    x: Tensor | None,
    labels: Sequence[Label] | NodeCells,
    source: LabelSource,
    inverses: bool,
    self_loops: bool,
    name: str,
    provenance: dict[str, Any],
) -> NodeData:
    """Return a data set of triples and features, with labels matched to its nodes and split."""
    fields: dict[str, Any] = {}
    if isinstance(labels, NodeCells):
        fields, num_unknown = attach(labels, triples.node_names, source)
        targets, classes, parts = fields["labels"], fields["classes"], [fields[part] for part in PARTS]
    else:
        matched = match_labels(labels, triples.node_names, source.skip_unknown)
        classes, num_unknown = matched.class_names, matched.num_unknown
        targets, parts = matched.split(len(triples.node_names), source)
    if num_unknown:
        provenance["unknown_nodes"] = num_unknown
    data = assemble(triples, x, targets, classes, parts, inverses, self_loops, name)
    return replace(data, provenance=data.provenance | provenance, **fields)


def find_all_labels(triples: Triples, source: LabelSource) -> tuple[Triples, Sequence[Label] | NodeCells]:
    """Return the classes of nodes, or whatever else they are to learn, and the triples that remain as the graph."""
    return find_cells(triples, source) or find_labels(triples, source)


def prune(data: NodeData, hops: int) -> NodeData:
    """Keep the receptive field of the labelled nodes in a model of ``hops`` layers; outputs there stay the same.

    Examples:
        >>> import rgat
        >>> data = rgat.data.load("institute")
        >>> small = rgat.data.prune(data, hops=1)
        >>> small.graph.num_edges < data.graph.num_edges
        True
    """
    source, target = data.graph.edge_index
    needed = data.labels != MISSING  # nodes whose hidden representation affects an output
    for _ in range(hops - 1):
        needed = needed.clone().index_fill_(0, source[needed[target]], True)
    kept_edges = needed[target]  # all edges of a softmax group stay together
    kept_nodes = needed.clone().index_fill_(0, source[kept_edges], True)
    new_id = kept_nodes.cumsum(0) - 1
    nodes = kept_nodes.nonzero().squeeze(1)
    graph = RelationalGraph(
        new_id[data.graph.edge_index[:, kept_edges]],
        data.graph.edge_type[kept_edges],
        num_nodes=len(nodes),
        num_relations=data.graph.num_relations,
    )
    return replace(
        data,
        graph=graph,
        x=None if data.x is None else data.x[nodes],
        **data.labels_of(nodes),  # type: ignore[arg-type]
        train=new_id[data.train],
        valid=new_id[data.valid],
        test=new_id[data.test],
        node_names=tuple(data.node_names[node] for node in nodes.tolist()),
        provenance=data.provenance | {"hops": hops},
    )
