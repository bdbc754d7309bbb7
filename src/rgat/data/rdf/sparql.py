"""Read the neighbourhood of labelled nodes from a SPARQL endpoint or an Oxigraph store, batch by batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rgat.checks import check_count
from rgat.data.dataset import NodeData
from rgat.data.files import replacing
from rgat.data.rdf.endpoint import Endpoint, EndpointError, values
from rgat.data.rdf.knowledge_graph import from_rdf
from rgat.data.rdf.labels import FilePath, LabelSource, LabelTable, read_label_tables
from rgat.data.rdf.reader import oxigraph
from rgat.progress import Progress, shown

MOST_NODES, MOST_CHARACTERS = 500, 100_000  # that one query names
Term = Any  # a node of pyoxigraph: NamedNode, BlankNode or Literal
Triple = tuple[Term, Term, Term]


class Fetched(NamedTuple):
    """What a fetch wrote."""

    triples: int
    nodes: int  # whose triples are all there
    left_out: int  # triples with a blank node, which no second query can name


class TripleSource(Protocol):
    """Where triples can be asked for."""

    def touching(self, nodes: Sequence[Term]) -> Iterable[Triple]:
        """Return each triple whose subject or object is one of the nodes, once."""

    def labelled(self, predicate: Term) -> tuple[set[Term], int]:
        """Return the subjects of a predicate that can be asked about, and the number of triples of the others."""


class _EndpointSource:
    def __init__(self, endpoint: Endpoint, dropped: Sequence[Term]) -> None:
        self.endpoint = endpoint
        self.filter = f" FILTER(?p NOT IN ({', '.join(map(str, dropped))}))" if dropped else ""

    def touching(self, nodes: Sequence[Term]) -> Iterable[Triple]:
        subjects = [node for node in nodes if not isinstance(node, oxigraph().Literal)]
        as_subject = f"{{ VALUES ?s {{ {values(subjects)} }} ?s ?p ?o }}"
        as_object = f"{{ VALUES ?o {{ {values(nodes)} }} ?s ?p ?o }}"
        rows: Any = self.endpoint.select("?s ?p ?o", f"{as_subject} UNION {as_object}{self.filter}")
        self._check(rows)
        asked = set(nodes)
        if any(s not in asked and o not in asked for s, _, o in rows):
            raise EndpointError(f"{self.endpoint.url} must answer about the nodes it was asked for, got others")
        triples: Iterable[Triple] = rows
        return triples

    def labelled(self, predicate: Term) -> tuple[set[Term], int]:
        found: Any = self.endpoint.select("?s ?o", f"?s {predicate} ?o")
        self._check((subject, predicate, value) for subject, value in found)
        named = [subject for subject, _ in found if isinstance(subject, oxigraph().NamedNode)]
        return set(named), len(found) - len(named)

    def _check(self, triples: Iterable[Triple]) -> None:
        ox = oxigraph()
        if any(isinstance(s, ox.Literal) or not isinstance(p, ox.NamedNode) for s, p, _ in triples):
            url = self.endpoint.url
            raise EndpointError(f"{url} must give triples whose subject is a node and predicate an IRI, got literals")


class _StoreSource:
    """All graphs of an Oxigraph store, merged; blank nodes keep their names there."""

    def __init__(self, store: Any, dropped: Sequence[Term]) -> None:
        self.store, self.dropped = store, set(dropped)

    def touching(self, nodes: Sequence[Term]) -> Iterable[Triple]:
        found = dict[Triple, None]()
        for node in nodes:
            patterns = [(None, None, node, None)]
            if not isinstance(node, oxigraph().Literal):
                patterns.append((node, None, None, None))
            for pattern in patterns:
                for quad in self.store.quads_for_pattern(*pattern):
                    if quad.predicate not in self.dropped:
                        found[quad.subject, quad.predicate, quad.object] = None
        return found

    def labelled(self, predicate: Term) -> tuple[set[Term], int]:
        return {quad.subject for quad in self.store.quads_for_pattern(None, predicate, None, None)}, 0


def fetch_neighbourhood(
    source: Any,
    out: FilePath,
    labels: LabelTable | None = None,
    *,
    label_predicate: str | None = None,
    nodes: Sequence[str] = (),
    hops: int = 2,
    drop_predicates: Sequence[str] = (),
    page: int = 10_000,
    timeout: float = 60.0,
    progress: Progress = False,
    **labelling: Any,
) -> Fetched:
    r"""Write the receptive field of some nodes to an N-Triples file: what a model of ``hops`` layers reads.

    Args:
        source: the address of a SPARQL endpoint, or an Oxigraph store: its folder, or a `pyoxigraph.Store`.
        out: the file to write, which ends in .nt; it appears when it is complete.
        labels: a table of nodes and classes, as `from_rdf` takes it.
        label_predicate: the IRI whose subjects are the labelled nodes, instead of ``labels``.
        nodes: IRIs of further nodes, such as those to predict.
        hops: number of layers of the model; a triple is read if one of its ends is fewer steps away from a node.
        drop_predicates: IRIs whose triples are left out, and not followed.
        page: largest number of rows to ask an endpoint for at once.
        timeout: seconds within which each answer of an endpoint must be complete.
        progress: show the progress, or a function to call with each `rgat.progress.Step`.
        **labelling: further fields of `rgat.data.rdf.labels.LabelSource`, such as ``node_column``.

    Examples:
        >>> import pyoxigraph
        >>> from rgat.data import fetch_neighbourhood
        >>> store = pyoxigraph.Store()
        >>> store.load(b"<x:a> <x:p> <x:b> . <x:b> <x:p> <x:c> . <x:c> <x:p> <x:d> .", pyoxigraph.RdfFormat.TURTLE)
        >>> fetch_neighbourhood(store, "near.nt", nodes=["x:a"], hops=2)
        Fetched(triples=2, nodes=2, left_out=0)
    """
    check_count("hops", hops)
    if Path(out).suffix != ".nt":
        raise ValueError(f"{out}: a neighbourhood must be written to a file that ends in .nt")
    given = LabelSource(labels, label_predicate, **labelling)
    asked = _open(source, [_iri(word, "a predicate") for word in drop_predicates], page, timeout)
    seeds = {_iri(label.node, label.origin) for label in read_label_tables(given)} | {_iri(n, "a node") for n in nodes}
    label, unnamed = None, 0
    if label_predicate is not None:
        label = _iri(label_predicate, "`label_predicate`")
        labelled, unnamed = asked.labelled(label)
        seeds |= labelled
    if not seeds and unnamed:
        raise ValueError(f"{source} must have labelled nodes with IRIs, got blank nodes only; read a dump or a store")
    if not seeds:
        raise ValueError("nodes must be given whose neighbourhood is read: --labels, --label-predicate or --nodes")
    with shown(progress, ["reading"]) as stages, replacing(out) as file:
        counts = [0, 0, unnamed]
        for triples, num_nodes, left_out, share in _walk(asked, seeds, hops, isinstance(asked, _EndpointSource), label):
            file.write("".join(f"{s} {p} {o} .\n" for s, p, o in triples).encode())
            counts = [counts[0] + len(triples), counts[1] + num_nodes, counts[2] + left_out]
            stages("reading", share, f"{counts[0]:,} triples of {counts[1]:,} nodes", counts[0], "triples")
        if not counts[0]:
            raise ValueError(f"{source} must have triples of the {len(seeds):,} nodes, got none; are these its IRIs?")
    return Fetched(*counts)


def from_sparql(
    source: Any,
    labels: LabelTable | None = None,
    *,
    label_predicate: str | None = None,
    nodes: Sequence[str] = (),
    hops: int = 2,
    drop_predicates: Sequence[str] = (),
    page: int = 10_000,
    timeout: float = 60.0,
    **options: Any,
) -> NodeData:
    r"""Read the receptive field of labelled nodes from a SPARQL endpoint or an Oxigraph store, as `from_rdf` would.

    Args:
        source: see `fetch_neighbourhood`, as for all arguments before ``options``.
        labels: a table of nodes and classes.
        label_predicate: the IRI whose triples name the class of their subject; they and their inverses are removed.
        nodes: IRIs of further nodes, such as those to predict.
        hops: number of layers of the model.
        drop_predicates: IRIs whose triples are left out, and not followed.
        page: largest number of rows to ask an endpoint for at once.
        timeout: seconds within which each answer of an endpoint must be complete.
        **options: of `from_rdf`.

    Examples:
        >>> import pyoxigraph
        >>> import rgat
        >>> store, line = pyoxigraph.Store(), "<x:{}> <x:cites> <x:b> . <x:{}> <x:group> 'g{}' .\n"
        >>> store.load("".join(line.format(n, n, n % 2) for n in range(20)), pyoxigraph.RdfFormat.TURTLE)
        >>> data = rgat.data.from_sparql(store, label_predicate="x:group")
        >>> data.classes, data.graph.num_nodes
        (('"g0"', '"g1"'), 21)
    """
    fetching: dict[str, Any] = {"label_predicate": label_predicate, "nodes": nodes, "hops": hops, "page": page}
    fetching |= {"drop_predicates": drop_predicates, "timeout": timeout}
    fields = {word: options[word] for word in LabelSource.__dataclass_fields__ if word in options}
    with tempfile.TemporaryDirectory(prefix="rgat-") as folder:
        path = Path(folder) / "neighbourhood.nt"
        fetched = fetch_neighbourhood(source, path, labels, **fetching, **fields)
        data = from_rdf(path, labels, label_predicate=label_predicate, **options)
    about = {"source": str(source), "hops": hops, "left_out": fetched.left_out}
    return replace(data, provenance=data.provenance | {"sparql": about})


def _open(source: Any, dropped: Sequence[Term], page: int, timeout: float) -> TripleSource:
    ox = oxigraph()
    if isinstance(source, ox.Store):
        return _StoreSource(source, dropped)
    if isinstance(source, PathLike) or "://" not in str(source):
        if not (Path(source) / "CURRENT").is_file():
            raise ValueError(f"{source} must be the address of an endpoint, or the folder of an Oxigraph store")
        try:
            return _StoreSource(ox.Store.read_only(str(source)), dropped)
        except OSError as error:
            raise ValueError(f"{source}: cannot be opened as an Oxigraph store: {error}") from error
    return _EndpointSource(Endpoint(str(source), page, timeout), dropped)


def _iri(text: str, origin: str) -> Term:
    """Return a node by its IRI, with or without brackets."""
    try:
        return oxigraph().NamedNode(text.removeprefix("<").removesuffix(">"))
    except ValueError as error:
        raise ValueError(f'{origin}: a node must be given by its IRI, got "{text}": {error}') from error


def _walk(
    source: TripleSource, seeds: set[Term], hops: int, drops_blank_nodes: bool, label: Term | None
) -> Iterator[tuple[list[Triple], int, int, float]]:
    """Yield the new triples of each batch of nodes, the numbers of nodes and of triples left out, and the share done.

    A triple whose ends are both asked about comes with the one that is asked about first. Triples of the predicate
    ``label`` whose subject is left out are counted elsewhere.
    """
    ox, done, frontier = oxigraph(), set[Term](), seeds
    names = (ox.NamedNode, ox.Literal) if drops_blank_nodes else (ox.NamedNode, ox.Literal, ox.BlankNode)
    for hop in range(hops):
        reached, finished = set[Term](), 0
        for batch in _batches(sorted(frontier, key=str)):
            triples, left_out = list[Triple](), 0
            for subject, predicate, value in source.touching(batch):
                if not (isinstance(subject, names) and isinstance(value, names)):
                    left_out += isinstance(subject, names) or predicate != label
                elif subject not in done and value not in done:
                    triples.append((subject, predicate, value))
                    reached.update((subject, value))
            done.update(batch)
            finished += len(batch)
            yield triples, len(batch), left_out, (hop + finished / len(frontier)) / hops
        frontier = reached - done


def _batches(nodes: Sequence[Term]) -> Iterator[list[Term]]:
    """Yield nodes in groups that one query can name."""
    batch, size = list[Term](), 0
    for node in nodes:
        length = len(str(node))
        if batch and (len(batch) == MOST_NODES or size + length > MOST_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(node)
        size += length
    if batch:
        yield batch
