"""Read RDF files as triples: subjects and objects become nodes, predicates become relations."""

from __future__ import annotations

import io
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rgat.checks import check_word
from rgat.data.files import Check, LineLimit, UnreadableError, kind_of, open_bytes
from rgat.data.rdf.blank_nodes import name_blank_nodes
from rgat.data.rdf.limits import RdfLimits
from rgat.progress import Progress, shown

Ids = NDArray[np.int64]
Batch = tuple["array[int]", "array[int]", "array[int]"]  # subjects, predicates, objects

FORMATS = {
    "ntriples": "N_TRIPLES",
    "nquads": "N_QUADS",
    "turtle": "TURTLE",
    "trig": "TRIG",
    "rdfxml": "RDF_XML",
    "n3": "N3",
    "jsonld": "JSON_LD",
}
SUFFIXES = {
    ".nt": "ntriples",
    ".nq": "nquads",
    ".ttl": "turtle",
    ".trig": "trig",
    ".rdf": "rdfxml",
    ".owl": "rdfxml",
    ".xml": "rdfxml",
    ".n3": "n3",
    ".jsonld": "jsonld",
}
BATCH = 10_000  # triples converted to text at once, which is much faster than one at a time
MAX_EXPANDED = 1 << 25  # bytes of the triples of a text in memory, with prefixes written out


@dataclass(frozen=True)
class Triples:
    """Distinct triples over sorted names of nodes and relations, written as in N-Triples."""

    node_names: list[str]
    relation_names: list[str]
    edges: Ids  # [E, 3]: subject, predicate, object; sorted
    skipped: tuple[str, ...] = ()  # invalid lines that were left out: file, line and reason of each

    def __len__(self) -> int:
        return len(self.edges)

    def keep(self, edges: NDArray[np.bool_], nodes: NDArray[np.bool_] | None = None) -> tuple[Triples, Ids]:
        """Return the selected triples, and the former ids of their nodes; unused relations are removed.

        Args:
            edges: mask of the triples to keep.
            nodes: mask of the nodes to keep, which must include the ends of these triples; by default only their ends.
        """
        kept = self.edges[edges]
        if nodes is None:
            nodes = np.bincount(kept[:, [0, 2]].reshape(-1), minlength=len(self.node_names)) > 0
        new_id, old_id = np.cumsum(nodes) - 1, np.flatnonzero(nodes)
        relations, relation = np.unique(kept[:, 1], return_inverse=True)
        table = np.stack([new_id[kept[:, 0]], relation, new_id[kept[:, 2]]], axis=1)
        names = [self.node_names[node] for node in old_id.tolist()]
        return Triples(names, [self.relation_names[number] for number in relations.tolist()], table), old_id


def oxigraph() -> Any:
    """Import pyoxigraph, or raise an error that says how to install it."""
    try:
        import pyoxigraph
    except ImportError as error:
        raise ImportError("reading RDF needs pyoxigraph; install it with `pip install 'rgat[rdf]'`") from error
    return pyoxigraph


class TripleStream:
    """Read RDF files batch by batch; nodes and predicates get ids in the order of their first occurrence.

    Args:
        files: one or several paths; their suffixes tell format and compression.
        format: one of ``FORMATS``, if the suffixes do not tell it.
        skip_invalid: leave out invalid lines of N-Triples and N-Quads files, and list them in ``skipped``.
    """

    batch_size = BATCH

    def __init__(
        self,
        files: str | PathLike[str] | Sequence[str | PathLike[str]],
        format: str | None = None,  # noqa: A002
        skip_invalid: bool = False,
    ) -> None:
        if format is not None:
            check_word("format", format, tuple(FORMATS))
        self.paths = [Path(files)] if isinstance(files, (str, PathLike)) else [Path(file) for file in files]
        if not self.paths:
            raise ValueError("`files` must name at least one RDF file, got none")
        self.format = format
        self._nodes: dict[bytes, int] = {}
        self._predicates: dict[bytes, int] = {}
        self._file: Any = None
        self.skipped: list[str] | None = [] if skip_invalid else None  # file, line and reason of each invalid line
        self._done = 0  # bytes of the files that are read to their ends

    def __iter__(self) -> Iterator[Batch]:
        """Yield the triples as three columns of ids; errors name the file and, where known, the line."""
        for number, path in enumerate(self.paths):
            yield from self._read(path)
            self._done += self._size(path)
            if len(self.paths) > 1:
                nodes = self._nodes
                for label in [name for name in nodes if name.startswith(b"_:") and b" " not in name]:
                    nodes[b"_:%d %s" % (number, label)] = nodes.pop(label)  # labels of blank nodes are local to a file

    def node_names(self) -> list[bytes]:
        """Return the names of all nodes read so far, by id; blank nodes of several files have labels with a space."""
        return sorted(self._nodes, key=self._nodes.__getitem__) if len(self.paths) > 1 else list(self._nodes)

    def size_of_names(self) -> tuple[int, int]:
        """Return the number of nodes read so far, and the bytes of their names, estimated from the last ones."""
        last = [len(name) for name in islice(reversed(self._nodes), 1000)]
        return len(self._nodes), len(self._nodes) * sum(last) // max(len(last), 1)

    def predicate_names(self) -> list[str]:
        """Return the names of all predicates read so far, by id."""
        return [name.decode() for name in self._predicates]

    def share_read(self) -> float:
        """Return the share of the files' bytes that is read, from 0 to 1; 0 for a pipe, whose size is unknown."""
        raw = None if self._file is None or self._file.closed else self._file.raw.file
        here = raw.tell() if raw is not None and raw.seekable() else 0
        total = sum(map(self._size, self.paths))
        return min((self._done + here) / total, 1.0) if total else 0.0

    def _size(self, path: Path) -> int:
        return path.stat().st_size

    def _open(self, path: Path, limits: RdfLimits, *checks: Check) -> IO[bytes]:
        return open_bytes(path, *checks, limits)

    def _check(self, text: bytes) -> None:
        """Raise if the triples of a batch must not be read."""

    def _read(self, path: Path) -> Iterator[Batch]:
        ox = oxigraph()
        format = self.format or _format_of(path)  # noqa: A001
        parser_format = getattr(ox.RdfFormat, FORMATS[format])
        by_line = format in ("ntriples", "nquads")
        if self.skipped is not None and not by_line:
            raise ValueError(
                f"{path}: invalid lines must be in N-Triples or N-Quads to be skipped, got {format}, in which they "
                "have no end; leave out `skip_invalid` (--skip-invalid)"
            )
        limits = RdfLimits(path, format)
        checks = [LineLimit(path)] if by_line else []
        base = None if by_line else "http://base.invalid/"
        nodes, predicates = self._nodes, self._predicates
        node_id, predicate_id = nodes.setdefault, predicates.setdefault
        try:
            with self._open(path, limits, *checks) as file:
                if self.skipped is None:
                    quads = iter(ox.parse(input=file, format=parser_format, base_iri=base))
                else:
                    quads = _parse_valid(file, parser_format, path, self.skipped)
                if parser_format.supports_datasets:
                    quads = (quad.triple for quad in quads)
                self._file = file
                while text := ox.serialize(islice(quads, self.batch_size), format=ox.RdfFormat.N_TRIPLES):
                    self._check(text)
                    batch = (array("i"), array("i"), array("i"))
                    add_subject, add_predicate, add_object = (column.append for column in batch)
                    for line in text.split(b" .\n"):
                        if line:
                            subject, predicate, value = line.split(b" ", 2)
                            add_subject(node_id(subject, len(nodes)))
                            add_predicate(predicate_id(predicate, len(predicates)))
                            add_object(node_id(value, len(nodes)))
                    yield batch
        except SyntaxError as error:
            line_number = f", line {error.lineno}" if error.lineno else ""
            raise ValueError(f"{path}{line_number}: not valid {format}: {error.msg}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from error
        except MemoryError as error:
            limits.check_all()  # raises an error that names the line, if nesting is the cause
            raise ValueError(f"{path}: a term is too long for the parser, or the memory too small: {error}") from error
        except UnreadableError:
            raise
        except ValueError as error:
            raise ValueError(f"{path}: holds more than triples: {error}") from error


class TextStream(TripleStream):
    """Read RDF from memory: no file is opened, whatever the text says.

    A prefix can make the triples much longer than the text, so few are read at once, and all have a limit.
    """

    batch_size = 10

    def __init__(self, text: bytes, format: str) -> None:  # noqa: A002
        super().__init__("triples", format)  # the name in errors
        self.text, self.expanded = text, 0

    def _check(self, text: bytes) -> None:
        self.expanded += len(text)
        if self.expanded > MAX_EXPANDED:
            raise UnreadableError(
                f"triples must have at most {MAX_EXPANDED:,} bytes with prefixes written out, got more; send fewer"
            )

    def _size(self, path: Path) -> int:
        return len(self.text)

    def _open(self, path: Path, limits: RdfLimits, *checks: Check) -> IO[bytes]:
        limits.checks_all = True
        limits(self.text)
        for check in checks:
            check(self.text)
        return io.BytesIO(self.text)

    def share_read(self) -> float:
        return 1.0


def parse_triples(text: bytes, format: str) -> Triples:  # noqa: A002
    """Return the triples of a text in memory, as `read_triples` does those of a file."""
    return _collect(TextStream(text, format))


def read_triples(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    format: str | None = None,  # noqa: A002  (the option's name on the command line)
    literals: str = "nodes",
    blank_nodes: str = "kept",
    drop_predicates: Sequence[str] = (),
    skip_invalid: bool = False,
    progress: Progress = False,
) -> Triples:
    """Read one or several RDF files, plain or compressed, as one set of triples; named graphs are merged.

    Args:
        files: paths; their suffixes tell format and compression.
        format: one of ``FORMATS``, if the suffixes do not tell it.
        literals: "nodes" makes each spelling of a literal a node, "dropped" leaves literals out.
        blank_nodes: "kept" or "dropped".
        drop_predicates: IRIs whose triples are left out.
        skip_invalid: leave out invalid lines of N-Triples and N-Quads files, instead of raising an error.
        progress: show the progress, or a function to call with each `rgat.progress.Step`.
    """
    check_word("literals", literals, ("nodes", "dropped"))
    check_word("blank_nodes", blank_nodes, ("kept", "dropped"))
    stream = TripleStream(files, format, skip_invalid)
    return _collect(stream, literals, blank_nodes, drop_predicates, progress)


def _collect(
    stream: TripleStream,
    literals: str = "nodes",
    blank_nodes: str = "kept",
    drop_predicates: Sequence[str] = (),
    progress: Progress = False,
) -> Triples:
    """Return the distinct triples of a stream over sorted names."""
    columns = (array("i"), array("i"), array("i"))
    with shown(progress, ["reading"]) as stages:
        stages("reading")
        for batch in stream:
            for column, ids in zip(columns, batch, strict=True):
                column.extend(ids)
            count = len(columns[0])
            stages("reading", stream.share_read(), f"{count:,} triples", count, "triples")
    names = [name.decode() for name in stream.node_names()]
    relations = stream.predicate_names()
    edges = np.stack([np.frombuffer(column, dtype=np.int32) for column in columns], axis=1).astype(np.int64)
    unwanted = ('"' if literals == "dropped" else "") + ("_" if blank_nodes == "dropped" else "")
    keep_node = np.array([name[0] not in unwanted for name in names], dtype=bool)
    dropped = dropped_predicates(drop_predicates, relations)
    keep_relation = np.array([name not in dropped for name in relations], dtype=bool)
    edges = edges[keep_node[edges[:, 0]] & keep_node[edges[:, 2]] & keep_relation[edges[:, 1]]]
    relation_names, edges[:, 1] = _number(relations, edges[:, 1])
    names = name_blank_nodes(names, relation_names, edges)
    node_names, ends = _number(names, edges[:, [0, 2]])
    edges[:, 0], edges[:, 2] = ends[:, 0], ends[:, 1]
    distinct = sort_triples(edges, len(node_names), len(relation_names))
    return Triples(node_names, relation_names, distinct, tuple(stream.skipped or ()))


def dropped_predicates(iris: Sequence[str], relations: Sequence[str]) -> set[str]:
    """Return the predicates to leave out, or raise if the files lack one of them."""
    dropped = {f"<{iri.strip('<>')}>" for iri in ([iris] if isinstance(iris, str) else iris)}
    unknown = sorted(dropped.difference(relations))
    if unknown:
        raise ValueError(
            f"predicates to leave out must be in the files, got {unknown[0]}, which is in none of them; "
            f"there are {len(relations)}, such as {relations[0] if relations else 'none'}"
        )
    return dropped


def _parse_valid(file: IO[bytes], parser_format: Any, path: Path, skipped: list[str]) -> Iterator[Any]:
    """Yield the triples or quads of the valid lines; append file, line and reason of the others to ``skipped``."""
    ox, start = oxigraph(), 0
    while lines := list(islice(file, BATCH)):
        try:
            yield from list(ox.parse(input=b"".join(lines), format=parser_format))
        except SyntaxError:
            for number, line in enumerate(lines, start + 1):
                try:
                    yield from list(ox.parse(input=line, format=parser_format))
                except SyntaxError as error:
                    skipped.append(f"{path}, line {number}: {error.msg.replace(' at line 1', '')}")
        start += len(lines)


def _number(names: list[str], used: Ids) -> tuple[list[str], Ids]:
    """Return the names that occur among the used ids, sorted, and these ids in the new numbering."""
    present = np.flatnonzero(np.bincount(used.reshape(-1), minlength=len(names)))
    order = sorted(present.tolist(), key=names.__getitem__)
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return [names[old] for old in order], rank[used]


def sort_triples(edges: Ids, num_nodes: int, num_relations: int) -> Ids:
    """Return the distinct triples ``[E, 3]``, sorted."""
    if num_nodes**2 * num_relations < 2**63:  # a triple fits one integer key, which sorts much faster than rows
        key = np.unique((edges[:, 0] * num_relations + edges[:, 1]) * num_nodes + edges[:, 2])
        pair, value = np.divmod(key, max(num_nodes, 1))
        return np.stack([*np.divmod(pair, max(num_relations, 1)), value], axis=1)
    return np.unique(edges, axis=0)


def _format_of(path: Path) -> str:
    suffix = kind_of(path)
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ValueError(
            f"{path}: the name must end in one of {known} (then .gz, .bz2, .xz or .zst), or `format` (--format) must "
            "be given"
        )
    return SUFFIXES[suffix]


def split_literal(text: str) -> tuple[str, str]:
    """Return value and datatype (or ``@language``) of a literal written as in N-Triples."""
    end = text.rindex('"')
    tail = text[end + 1 :]
    return text[1:end], tail[3:-1] if tail.startswith("^^") else tail or "http://www.w3.org/2001/XMLSchema#string"
