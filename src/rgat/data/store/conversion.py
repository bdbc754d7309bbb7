"""Convert RDF dumps to stores, in memory that does not grow with the number of triples beyond the table of names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.checks import check_word
from rgat.data.files import NewFolder
from rgat.data.rdf.blank_nodes import name_blank_nodes
from rgat.data.rdf.features import AUTO, FEATURES
from rgat.data.rdf.labels import FilePath, Label, LabelSource, match_labels, read_label_tables, take_labels
from rgat.data.rdf.reader import Triples, TripleStream, dropped_predicates, sort_triples
from rgat.data.store.features import SortedTriples, feature_rows, feature_width, learn_vocabulary
from rgat.data.store.sorting import TripleSorter
from rgat.data.store.spool import Mask, Selection, Spool
from rgat.data.store.stored_graph import StoredGraph, open_store
from rgat.data.store.writer import MEMORY, StoreWriter, disk_error
from rgat.progress import Progress, Stages, shown

_BYTES_PER_TRIPLE = 12  # in the spool
_BYTES_PER_EDGE = 8 + 4 + 12  # its sort key, its source, and its group if it is alone there
_BYTES_PER_NODE = 8 + 8  # where its name and its groups begin
_BYTES_PER_SORTED_TRIPLE = 8 + 12  # its sort key, and its ids, from which features are made


@dataclass(frozen=True)
class _Options:
    """How triples become a graph; the fields are arguments of `convert`."""

    inverses: bool
    self_loops: bool
    literals: str
    features: tuple[str, ...]
    blank_nodes: str
    drop_predicates: tuple[str, ...]
    memory: int

    def __post_init__(self) -> None:
        check_word("literals", self.literals, ("nodes", "dropped", "features"))
        check_word("blank_nodes", self.blank_nodes, ("kept", "dropped"))
        for word in self.features:
            check_word("features", word, FEATURES)


def convert(
    files: FilePath | Sequence[FilePath],
    store: str | PathLike[str],
    labels: FilePath | None = None,
    *,
    format: str | None = None,  # noqa: A002
    inverses: bool = True,
    self_loops: bool = True,
    literals: str = "nodes",
    features: Sequence[str] = (),
    blank_nodes: str = "kept",
    drop_predicates: Sequence[str] = (),
    skip_invalid: bool = False,
    memory: int = MEMORY,
    progress: Progress = False,
    **labelling: Any,
) -> StoredGraph:
    r"""Write a knowledge graph as a store, and open it.

    Nodes, relations, features and labels are those of `rgat.data.from_rdf` with the same arguments. The files are
    read once; their triples are kept in a temporary folder beside the store. Besides ``memory``, the conversion holds
    the names of the nodes, some arrays with an element per node, and the triples with a blank node, whose names depend
    on one another.

    Args:
        files: one or several RDF files, plain or compressed.
        store: the folder to write, which must be new or empty.
        labels: a TSV or CSV file of nodes and classes, to be kept in the store.
        format: format of the RDF files, if their suffixes do not tell it.
        inverses: add an inverse of every relation.
        self_loops: add a relation from every node to itself.
        literals: "nodes", "dropped", or "features" of their subjects.
        features: node features "types", "degrees" and "literals"; "auto" makes none, and leaves the choice to a fit.
        blank_nodes: "kept" or "dropped".
        drop_predicates: IRIs whose triples are left out.
        skip_invalid: leave out invalid lines of N-Triples and N-Quads files.
        memory: bytes for sorting triples.
        progress: show the progress, or a function to call with each `rgat.progress.Step`.
        **labelling: other labels, columns and ``skip_unknown``, as arguments of `rgat.data.from_rdf`. Labels
            without a part are split when they are used.

    Examples:
        >>> import rgat
        >>> triple = "<http://x.example/a> <http://x.example/cites> <http://x.example/b> .\n"
        >>> with open("dump.nt", "w") as file:
        ...     _ = file.write(triple)
        >>> rgat.data.convert("dump.nt", "store", inverses=False, self_loops=False).relation_names
        ('<http://x.example/cites>',)
    """
    features = () if features == AUTO else features  # chosen when the store is used
    source = LabelSource(labels, **labelling)
    source.refuse_targets("the labels that a store keeps")
    if "shares" in labelling or "seed" in labelling:
        raise ValueError("`shares` and `seed` must be given where the labels are used, such as to `from_rdf(STORE)`")
    drop_predicates = (drop_predicates,) if isinstance(drop_predicates, str) else tuple(drop_predicates)
    features = tuple(dict.fromkeys((*features, "literals") if literals == "features" else features))
    options = _Options(inverses, self_loops, literals, features, blank_nodes, drop_predicates, memory)
    tables = read_label_tables(source)  # before the files are read, which may take hours
    scratch = NewFolder(store)
    names = ["reading", "naming", "sorting", *(["features"] if features else [])]
    with shown(progress, names) as stages:
        conversion = _Conversion(scratch, options, source, tables, stages)
        try:
            conversion.read(TripleStream(files, format, skip_invalid))
            conversion.write()
        except OSError as error:
            raise disk_error(scratch.path, error, conversion.needed) from error
        finally:
            scratch.discard()
    return open_store(store)


class _Conversion:
    """The steps of a conversion, and what they pass on."""

    def __init__(
        self, scratch: NewFolder, options: _Options, source: LabelSource, labels: list[Label], stages: Stages
    ) -> None:
        self.scratch, self.options, self.source, self.stages = scratch, options, source, stages
        self.labels = labels
        self.needed = 0  # bytes on the disk, estimated
        self.names: list[bytes] = []  # of nodes, by the ids of the spool
        self.predicates: list[str] = []
        self.files: list[str] = []
        self.skipped: list[str] = []  # invalid lines

    def read(self, stream: TripleStream) -> None:
        """Write all triples to the spool."""
        self.stages("reading")
        with Spool(self.scratch.temporary / "triples") as spool:
            for batch in stream:
                share = stream.share_read()
                rows = spool.rows + len(batch[0])
                self.needed = self._needed(rows, *stream.size_of_names(), 1 / max(share, 0.01))
                spool.append(batch)
                self.stages("reading", share, f"{spool.rows:,} triples", spool.rows, "triples")
        self.names, self.predicates = stream.node_names(), stream.predicate_names()
        self.spool = spool
        self.needed = self._needed(spool.rows, len(self.names), sum(map(len, self.names)))
        self.files, self.skipped = [path.name for path in stream.paths], stream.skipped or []

    def write(self) -> None:
        """Name and number the nodes, and write the store."""
        options = self.options
        initials: NDArray[np.uint8] = np.fromiter((name[0] for name in self.names), np.uint8, len(self.names))
        is_literal, is_blank = initials == ord('"'), initials == ord("_")
        drop_literals = options.literals == "dropped" and "literals" not in options.features
        keep = ~(is_literal & drop_literals) & ~(is_blank & (options.blank_nodes == "dropped"))
        dropped = dropped_predicates(options.drop_predicates, self.predicates)
        keep_relation = np.array([name not in dropped for name in self.predicates], dtype=bool)
        selection = Selection(self.spool, keep, keep_relation)
        self.stages("naming", 0.0)
        if (is_blank & keep).any():
            self._name_blank_nodes(selection, is_blank)
        if self.source.label_predicate is not None:
            self._take_labels(selection, self.source.label_predicate)
        self.stages("naming", 0.5)
        with_literals = "literals" in options.features
        used, predicates, linking = selection.used(is_literal if with_literals else None)
        in_graph = used & ~is_literal if with_literals else used
        nodes, relations = _Numbering(in_graph, self.names), _Numbering(linking, self.predicates)
        with StoreWriter(
            self.scratch.path,
            nodes.sorted_names(),
            list(relations.sorted_names()),
            inverses=options.inverses,
            self_loops=options.self_loops,
            memory=options.memory,
            provenance=self._provenance(),
            needed=self.needed,
        ) as writer:
            self.stages("naming", 1.0)
            self._add_labels(writer)
            self._add_edges(writer, selection, nodes, relations)
            if options.features:
                nodes, relations = _Numbering(used, self.names), _Numbering(predicates, self.predicates)
                self._add_features(writer, selection, nodes, relations)

    def _add_edges(self, writer: StoreWriter, selection: Selection, nodes: _Numbering, relations: _Numbering) -> None:
        done = 0
        for rows in selection:
            ends, relation = nodes.new_id[rows[:, [0, 2]]], relations.new_id[rows[:, 1]]
            linked = ends[:, 1] >= 0  # a literal that becomes a feature has no id
            writer.add(ends[linked, 0], relation[linked], ends[linked, 1])
            done += len(rows)
            self.stages("sorting", 0.5 * done / max(self.spool.rows, 1))
        writer.sort_edges()
        self.stages("sorting", 1.0)

    def _add_features(
        self, writer: StoreWriter, selection: Selection, nodes: _Numbering, relations: _Numbering
    ) -> None:
        """Write the node features; ``nodes`` are those of the store and the literals that become features."""
        sizes = (len(nodes.order), len(relations.order), len(nodes.order))
        sorter = TripleSorter(self.scratch.temporary, sizes, self.options.memory)
        for rows in selection:
            sorter.add(nodes.new_id[rows[:, 0]], relations.new_id[rows[:, 1]], nodes.new_id[rows[:, 2]])
        triples = SortedTriples(self.scratch.temporary, sorter, nodes.sorted_name, list(relations.sorted_names()))
        vocabulary = learn_vocabulary(triples, self.options.features)
        writer.provenance["vocabulary"] = asdict(vocabulary)
        self.needed += writer.num_nodes * feature_width(triples, vocabulary) * np.dtype(np.float32).itemsize
        writer.needed = self.needed
        for x, share in feature_rows(triples, vocabulary, writer):
            writer.add_features(x)
            self.stages("features", share)

    def _add_labels(self, writer: StoreWriter) -> None:
        if not self.labels:
            return
        matched = match_labels(self.labels, writer.node_names(), self.source.skip_unknown)
        if matched.num_unknown:
            writer.provenance["unknown_nodes"] = matched.num_unknown
        writer.set_labels(matched.nodes.numpy(), matched.classes.numpy(), matched.class_names, matched.parts.numpy())

    def _name_blank_nodes(self, selection: Selection, is_blank: Mask) -> None:
        """Give blank nodes the names that depend on their neighbourhoods, as in `rgat.data.from_rdf`."""
        edges = selection.collect(lambda rows: is_blank[rows[:, 0]] | is_blank[rows[:, 2]])
        near = is_blank.copy()
        near[edges[:, [0, 2]]] = True
        new_id, old_id = np.cumsum(near) - 1, np.flatnonzero(near).tolist()
        edges[:, 0], edges[:, 2] = new_id[edges[:, 0]], new_id[edges[:, 2]]
        names = name_blank_nodes([self.names[node].decode() for node in old_id], self.predicates, edges)
        for node, name in zip(old_id, names, strict=True):
            self.names[node] = name.encode()

    def _take_labels(self, selection: Selection, predicate: str) -> None:
        """Take the labels that a predicate gives to its subjects, and leave its triples and their inverses out."""
        iri = f"<{predicate.strip('<>')}>"
        number = self.predicates.index(iri) if iri in self.predicates else -1
        edges = selection.collect(lambda rows: rows[:, 1] == number)
        near = np.zeros(len(self.names), dtype=bool)
        near[edges[:, [0, 2]]] = True
        nodes, relations = _Numbering(near, self.names), _Numbering(selection.used()[1], self.predicates)
        names, relation_names = [name.decode() for name in nodes.sorted_names()], list(relations.sorted_names())
        columns = [nodes.new_id[edges[:, 0]], relations.new_id[edges[:, 1]], nodes.new_id[edges[:, 2]]]
        table = sort_triples(np.stack(columns, axis=1).astype(np.int64), len(names), len(relation_names))
        _, self.labels = take_labels(Triples(names, relation_names, table), predicate)
        selection.remove_labels(edges, number)

    def _needed(self, triples: int, nodes: int, name_bytes: int, factor: float = 1.0) -> int:
        """Return the bytes on the disk for so many triples and nodes times a factor, without features."""
        edges = triples * (1 + self.options.inverses) + nodes * self.options.self_loops
        per_triple = _BYTES_PER_TRIPLE + _BYTES_PER_SORTED_TRIPLE * bool(self.options.features)
        needed = triples * per_triple + edges * _BYTES_PER_EDGE + nodes * _BYTES_PER_NODE + name_bytes
        return int(needed * factor)

    def _provenance(self) -> dict[str, Any]:
        options = self.options
        return {
            "files": self.files,
            "literals": options.literals,
            "blank_nodes": options.blank_nodes,
            "drop_predicates": list(options.drop_predicates),
            "label_predicate": self.source.label_predicate,
        } | ({"invalid_lines": {"count": len(self.skipped), "first": self.skipped[0]}} if self.skipped else {})


class _Numbering:
    """New ids of the used ones among some names, in the order of the names; -1 for the others."""

    def __init__(self, used: Mask, names: Sequence[Any]) -> None:
        self.names = names
        self.order = np.array(sorted(np.flatnonzero(used).tolist(), key=names.__getitem__), dtype=np.int32)
        self.new_id = np.full(len(names), -1, dtype=np.int32)
        self.new_id[self.order] = np.arange(len(self.order), dtype=np.int32)

    def sorted_name(self, new_id: int) -> str:
        """Return the name with a new id."""
        return str(self.names[self.order[new_id]], "utf-8")

    def sorted_names(self) -> Iterator[Any]:
        """Yield the used names in order."""
        return (self.names[old] for old in self.order.tolist())
