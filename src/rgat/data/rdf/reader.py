"""RDF files to relational graphs: subjects and objects are nodes, predicates are relations."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgat.checks import check_word
from rgat.data.files import Lines, UnreadableError, kind_of, open_bytes
from rgat.data.rdf.limits import Nesting

Ids = NDArray[np.int64]
Colours = NDArray[np.uint64]

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
LITERALS = ("nodes", "merged", "dropped", "features")
BLANK_NODES = ("kept", "dropped")
MAX_ROUNDS = 100  # of refining colours of blank nodes; a bound on time, not on correctness of the graph
MAX_VISITS = 1 << 25  # of edges in all rounds after the first MAX_ROUNDS: a second or two
BATCH = 10_000  # triples at a time between parser and numbering
_XSD = "http://www.w3.org/2001/XMLSchema#"


@dataclass(frozen=True)
class Triples:
    """What files say, as a set: distinct triples over sorted names, which are written as in N-Triples."""

    node_names: list[str]
    relation_names: list[str]
    edges: Ids  # [E, 3]: subject, predicate, object; sorted

    def __len__(self) -> int:
        return len(self.edges)

    def keep(self, edges: NDArray[np.bool_], nodes: NDArray[np.bool_] | None = None) -> tuple[Triples, Ids]:
        """Some of the triples, over the relations that they use and the given nodes, or those that they use.

        Args:
            edges: which triples.
            nodes: which nodes; they must include the ends of these triples.

        Returns:
            The triples, and the former ids of their nodes.
        """
        kept = self.edges[edges]
        if nodes is None:
            used = np.bincount(kept[:, [0, 2]].reshape(-1), minlength=len(self.node_names))
            nodes = used > 0
        node_id, places = np.cumsum(nodes) - 1, np.flatnonzero(nodes)
        relations, relation = np.unique(kept[:, 1], return_inverse=True)
        table = np.stack([node_id[kept[:, 0]], relation, node_id[kept[:, 2]]], axis=1)
        names = [self.node_names[place] for place in places.tolist()]
        return Triples(names, [self.relation_names[place] for place in relations.tolist()], table), places


def oxigraph() -> Any:
    """Import pyoxigraph, or say how to get it."""
    try:
        import pyoxigraph
    except ImportError as error:
        raise ImportError("reading RDF needs pyoxigraph; install it with `pip install 'rgat[rdf]'`") from error
    return pyoxigraph


def read_triples(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    format: str | None = None,  # noqa: A002  (the word of the command line)
    literals: str = "nodes",
    blank_nodes: str = "kept",
    drop_predicates: Sequence[str] = (),
) -> Triples:
    """Read one or several RDF files, plain or compressed, as one set of triples; named graphs are merged.

    Args:
        files: paths; the names say format and compression.
        format: one of ``FORMATS``, where the names do not say it.
        literals: "nodes" keeps each spelling as a node, "merged" each value of a datatype, "dropped" none. "features"
            keeps them as "nodes" does, for whoever turns them into features later.
        blank_nodes: "kept" or "dropped".
        drop_predicates: IRIs whose triples are left out.
    """
    check_word("literals", literals, LITERALS)
    check_word("blank_nodes", blank_nodes, BLANK_NODES)
    if format is not None:
        check_word("format", format, tuple(FORMATS))
    paths = [Path(files)] if isinstance(files, (str, PathLike)) else [Path(file) for file in files]
    if not paths:
        raise ValueError("`files` must name at least one RDF file, got none")
    nodes: dict[bytes, int] = {}
    predicates: dict[bytes, int] = {}
    columns = (array("i"), array("i"), array("i"))
    for number, path in enumerate(paths):
        _read_file(path, format, nodes, predicates, columns)
        if len(paths) > 1:
            for label in [name for name in nodes if name.startswith(b"_:") and b" " not in name]:
                nodes[b"_:%d %s" % (number, label)] = nodes.pop(label)  # a blank node belongs to its file
    by_id = sorted(nodes, key=nodes.__getitem__) if len(paths) > 1 else list(nodes)
    names = [name.decode() for name in by_id]
    edges = np.stack([np.frombuffer(column, dtype=np.int32) for column in columns], axis=1).astype(np.int64)
    if literals == "merged":
        names, merged = _merge(names)
        edges[:, 0], edges[:, 2] = merged[edges[:, 0]], merged[edges[:, 2]]
    unwanted = ('"' if literals == "dropped" else "") + ("_" if blank_nodes == "dropped" else "")
    keep_node = np.array([name[0] not in unwanted for name in names] if unwanted else [True] * len(names), dtype=bool)
    iris = [drop_predicates] if isinstance(drop_predicates, str) else drop_predicates
    dropped = {f"<{iri.strip('<>')}>" for iri in iris}
    relations = [name.decode() for name in predicates]
    strangers = sorted(dropped.difference(relations))
    if strangers:
        raise ValueError(
            f"predicates to leave out must be in the files, got {strangers[0]}, which is in none of them; "
            f"there are {len(relations)}, such as {relations[0] if relations else 'none'}"
        )
    keep_relation = np.array([name not in dropped for name in relations], dtype=bool)
    edges = edges[keep_node[edges[:, 0]] & keep_node[edges[:, 2]] & keep_relation[edges[:, 1]]]
    relation_names, edges[:, 1] = _number(relations, edges[:, 1])
    names = _name_blank_nodes(names, relation_names, edges)
    node_names, ends = _number(names, edges[:, [0, 2]])
    edges[:, 0], edges[:, 2] = ends[:, 0], ends[:, 1]
    return Triples(node_names, relation_names, _distinct(edges, len(node_names), len(relation_names)))


def _read_file(
    path: Path,
    format: str | None,  # noqa: A002
    nodes: dict[bytes, int],
    predicates: dict[bytes, int],
    columns: tuple[array[int], array[int], array[int]],
) -> None:
    """Append the triples of one file; errors name file and place.

    The parser's terms become text a batch at a time, which is much faster than one at a time.
    """
    ox = oxigraph()
    word = format or _format_of(path)
    kind = getattr(ox.RdfFormat, FORMATS[word])
    by_line = word in ("ntriples", "nquads")
    nesting = Nesting(path, word)
    checks = [Lines(path), nesting] if by_line else [nesting]
    base = None if by_line else "http://base.invalid/"
    node_id, predicate_id = nodes.setdefault, predicates.setdefault
    add_subject, add_predicate, add_object = (column.append for column in columns)
    try:
        with open_bytes(path, *checks) as file:
            quads = iter(ox.parse(input=file, format=kind, base_iri=base))
            if kind.supports_datasets:
                quads = (quad.triple for quad in quads)
            while text := ox.serialize(islice(quads, BATCH), format=ox.RdfFormat.N_TRIPLES):
                for line in text.split(b" .\n"):
                    if line:
                        subject, predicate, value = line.split(b" ", 2)
                        add_subject(node_id(subject, len(nodes)))
                        add_predicate(predicate_id(predicate, len(predicates)))
                        add_object(node_id(value, len(nodes)))
    except SyntaxError as error:
        line_number = f", line {error.lineno}" if error.lineno else ""
        raise ValueError(f"{path}{line_number}: not valid {word}: {error.msg}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    except MemoryError as error:
        nesting.follow()  # which may name the line
        raise ValueError(f"{path}: a term is too long for the parser, or the memory too small: {error}") from error
    except UnreadableError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: holds more than triples: {error}") from error


def _merge(names: list[str]) -> tuple[list[str], Ids]:
    """Names after merging literals, and the new place of each old one."""
    places: dict[str, int] = {}
    merged = [places.setdefault(merge_literal(name) if name[0] == '"' else name, len(places)) for name in names]
    return list(places), np.array(merged, dtype=np.int64)


def _number(names: list[str], used: Ids) -> tuple[list[str], Ids]:
    """The names that are used, sorted, and the uses in the new numbering."""
    present = np.flatnonzero(np.bincount(used.reshape(-1), minlength=len(names)))
    order = sorted(present.tolist(), key=names.__getitem__)
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return [names[place] for place in order], rank[used]


def _distinct(edges: Ids, num_nodes: int, num_relations: int) -> Ids:
    """The distinct rows, sorted."""
    if num_nodes**2 * num_relations < 2**63:  # one key holds a triple, and sorts much faster than three
        key = np.unique((edges[:, 0] * num_relations + edges[:, 1]) * num_nodes + edges[:, 2])
        pair, value = np.divmod(key, max(num_nodes, 1))
        return np.stack([*np.divmod(pair, max(num_relations, 1)), value], axis=1)
    return np.unique(edges, axis=0)


def _format_of(path: Path) -> str:
    suffix = kind_of(path)
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise ValueError(f"{path}: the name must end in one of {known} (then .gz or .bz2), or `format` must be given")
    return SUFFIXES[suffix]


def split_literal(text: str) -> tuple[str, str]:
    """Value and datatype (or ``@language``) of a literal written as in N-Triples."""
    end = text.rindex('"')
    tail = text[end + 1 :]
    return text[1:end], tail[3:-1] if tail.startswith("^^") else tail or f"{_XSD}string"


def merge_literal(text: str) -> str:
    """One spelling for each value of a numeric or boolean datatype; other literals stay as they are."""
    value, datatype = split_literal(text)
    kind = datatype.removeprefix(_XSD)
    try:
        if kind.lower().endswith(("integer", "int", "long", "short", "byte")) and datatype.startswith(_XSD):
            value = str(int(value)) if "_" not in value else value
        elif kind == "decimal" and "e" not in value.lower():  # an exponent is no part of it, and could fill the memory
            value = format(Decimal(value).normalize(), "f")
        elif kind in ("double", "float"):
            value = repr(float(value)) if "_" not in value else value
        elif kind == "boolean":
            value = {"1": "true", "0": "false"}.get(value, value)
        else:
            return text
    except (ValueError, ArithmeticError):
        return text  # not a number after all: it stays the node it is
    return f'"{value}"^^<{datatype}>'


def _name_blank_nodes(names: list[str], relation_names: list[str], edges: Ids) -> list[str]:
    """Name blank nodes by what surrounds them, since their labels may differ from format to format and run to run.

    A blank node's colour is a hash of its edges and of the colours at their other ends, refined round by round. Among
    blank nodes of one colour, those that belong together (joined by edges between blank nodes) keep together, so that
    equal pieces of a graph are numbered alike whatever their order; inside a piece one of the alike is singled out and
    colours are refined again. After many rounds the order in which nodes were met decides.
    """
    blank = np.array([name[0] == "_" for name in names], dtype=bool)
    if not blank.any():
        return names
    colour = np.zeros(len(names), dtype=np.uint64)
    pairs = np.unique(edges[blank[edges[:, 0]] | blank[edges[:, 2]]], axis=0)  # a repeated triple says nothing new
    kinds = np.array([_hash(name) for name in relation_names], dtype=np.uint64)[pairs[:, 1]]
    for place in np.unique(pairs[:, [0, 2]]).tolist():
        if not blank[place]:
            colour[place] = _hash(names[place])
    sides = []
    for here, there, direction in ((0, 2, 1), (2, 0, 2)):
        mine = blank[pairs[:, here]]
        sides.append((pairs[mine, here], pairs[mine, there], mix(kinds[mine] + np.uint64(direction))))
    colour, _ = _refine(colour, blank, sides, MAX_ROUNDS)
    rounds = MAX_VISITS // max(len(pairs), 1)
    places = np.flatnonzero(blank)
    pieces = _pieces(places, pairs[blank[pairs[:, 0]] & blank[pairs[:, 2]]])
    for _ in range(MAX_ROUNDS):
        order = places[np.lexsort((pieces, colour[places]))]
        colours, piece = colour[order], pieces[np.searchsorted(places, order)]
        alike = (colours[1:] == colours[:-1]) & (piece[1:] == piece[:-1])
        if not alike.any() or rounds <= 0:
            break
        chosen = order[int(np.argmax(alike))]
        colour[chosen] = mix(colour[chosen : chosen + 1] + np.uint64(1))[0]
        colour, used = _refine(colour, blank, sides, min(MAX_ROUNDS, rounds))
        rounds -= used
    order = places[np.lexsort((places, pieces, colour[places]))]
    renamed, counts = list(names), dict.fromkeys(colour[order].tolist(), 0)
    width = len(str(len(order)))
    for place in order.tolist():
        value = int(colour[place])
        renamed[place] = f"_:{value:016x}.{counts[value]:0{width}d}"
        counts[value] += 1
    return renamed


def _refine(
    colour: Colours, blank: NDArray[np.bool_], sides: list[tuple[Ids, Ids, Colours]], rounds: int
) -> tuple[Colours, int]:
    """Refine the colours of blank nodes by their neighbours' until no more can be told apart; also count the rounds."""
    num_colours = -1
    for used in range(rounds):
        found = len(np.unique(colour[blank]))
        if found <= num_colours:
            return colour, used
        num_colours = found
        refined = mix(colour)
        for here, there, kind in sides:
            np.add.at(refined, here, mix(colour[there] ^ kind))
        colour = np.where(blank, refined, colour)
    return colour, rounds


def _pieces(places: Ids, edges: Ids) -> Ids:
    """For each blank node the first one of its piece: those that edges between blank nodes join."""
    parent = {place: place for place in places.tolist()}

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for source, _, target in edges.tolist():
        a, b = root(source), root(target)
        parent[max(a, b)] = min(a, b)
    return np.array([root(place) for place in places.tolist()], dtype=np.int64)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(value: Colours) -> Colours:
    """The finaliser of SplitMix64: a change of one bit changes about half of all."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
