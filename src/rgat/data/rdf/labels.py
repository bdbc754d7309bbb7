"""Labels of a knowledge graph's nodes, from tables or from the graph's own triples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rgat.data.dataset import MISSING, PARTS
from rgat.data.rdf.reader import Triples, split_literal
from rgat.data.splits import OF_COLUMN, check_split, column_parts, shuffled_parts, stratified_parts
from rgat.data.tables import Table, read_table, separator_hint
from rgat.data.targets import MISSING_WORDS, Task, kinds_of

FilePath = str | PathLike[str]
LabelTable = FilePath | Any  # a file, or a data frame
SPLITS = ("stratified", "random", "time", "group", "column")
MOST_COMPARED = 1_000_000  # names to look through for one that is similar to an unknown one
RDFS_LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>"


@dataclass(frozen=True)
class Label:
    """The class of one node."""

    node: str
    name: str  # of the class
    part: str | None
    origin: str  # file and line, for error messages


@dataclass(frozen=True)
class LabelSource:
    """Where labels come from and how they are split; the fields are arguments of `rgat.data.from_rdf`.

    Attributes:
        labels: a TSV or CSV file, or a data frame, of nodes and classes, split by ``split``.
        label_predicate: the IRI whose triples name the class of their subject; they and their inverses are removed.
        train: a label file of the training part, instead of ``labels``.
        valid: a label file of the validation part.
        test: a label file of the test part.
        node_column: the column that names the node; by default the first.
        label_column: the column that names the class, or several columns to learn; by default the last other one.
        split: "stratified" by class, or "random"; or by ``split_column``: "time", oldest to train on, newest to test
            on; "group", which keeps each group in one part; "column", the words train, valid and test.
        split_column: the column to split by; without ``split`` a column of words.
        shares: shares of the training and validation parts in a random split; the rest is the test part.
        seed: random seed of the split.
        skip_unknown: leave out labels of nodes that are not in the graph.
        task: "binary", "multi-class", "multi-label" or "regression", for all columns to learn or as a dict by column;
            by default numbers with a fraction are a regression, ``a|b`` are several labels, anything else classes.
        censored: read cells such as ``>10`` as bounds of a number.
    """

    labels: LabelTable | None = None
    label_predicate: str | None = None
    train: LabelTable | None = None
    valid: LabelTable | None = None
    test: LabelTable | None = None
    node_column: str | None = None
    label_column: str | Sequence[str] | None = None
    split: str | None = None
    split_column: str | None = None
    shares: tuple[float, float] = (0.8, 0.1)
    seed: int = 0
    skip_unknown: bool = False
    task: Task = None
    censored: bool = False

    def refuse_targets(self, purpose: str) -> None:
        """Raise if labels other than one class per node are asked for."""
        columns = [] if self.label_column is None else self.label_column
        names = [columns] if isinstance(columns, str) else list(columns)
        kinds = kinds_of(self.task, names or list(self.task if isinstance(self.task, dict) else ["class"]))
        if len(names) > 1 or any(kind in ("multi-label", "regression") for kind in kinds.values()):
            raise ValueError(
                f"{purpose} must be one class per node, got a regression, several labels or several columns; leave "
                "them out here, and give them to `rgat train` with the store"
            )

    @property
    def is_empty(self) -> bool:
        """Whether there are no labels."""
        return all(getattr(self, name) is None for name in ("labels", "label_predicate", *PARTS))

    def __post_init__(self) -> None:
        kind = check_split(self.split, self.split_column, SPLITS)
        if kind in OF_COLUMN and self.labels is None:
            raise ValueError(f'the split "{kind}" needs one table of labels (`labels`, --labels), got none')
        by_part = any(getattr(self, part) is not None for part in PARTS)
        if (self.labels is not None) + by_part + (self.label_predicate is not None) > 1:
            raise ValueError(
                "labels must come as one file (`labels`), or a file per part, or by a predicate, got several"
            )


@dataclass(frozen=True)
class NodeLabels:
    """Classes of some nodes.

    Attributes:
        nodes: ids of the labelled nodes.
        classes: the class of each.
        class_names: names of the classes.
        parts: the part of each, by its position in ``PARTS``; -1 if it is to be split at random.
        num_unknown: number of labels that were left out because their nodes are not in the graph.
    """

    nodes: Tensor
    classes: Tensor
    class_names: tuple[str, ...]
    parts: Tensor
    num_unknown: int = 0

    def split(self, num_nodes: int, source: LabelSource) -> tuple[Tensor, list[Tensor]]:
        """Return the class of every node, -1 without a label, and ids of the train, valid and test parts."""
        targets = torch.full((num_nodes,), MISSING)
        targets[self.nodes] = self.classes
        unsplit = self.nodes[self.parts < 0].sort().values
        if not len(unsplit):
            return targets, [self.nodes[self.parts == part] for part in range(len(PARTS))]
        if source.split == "random":
            return targets, list(shuffled_parts(unsplit, source.shares, source.seed))
        return targets, [
            unsplit[part] for part in stratified_parts(targets[unsplit].tolist(), source.shares, source.seed)
        ]


def find_labels(triples: Triples, source: LabelSource) -> tuple[Triples, list[Label]]:
    """Return the labels of a source, and the triples that remain as the graph."""
    if source.label_predicate is not None:
        return take_labels(triples, source.label_predicate)
    return triples, read_label_tables(source, triples.node_names)


def read_label_tables(source: LabelSource, node_names: Sequence[str] = ()) -> list[Label]:
    """Return the labels of a source's tables; by the sorted names of all nodes a table without header is noticed."""
    column = source.label_column
    columns = (source.node_column, column if column is None or isinstance(column, str) else next(iter(column), None))
    if source.labels is not None:
        return read_labels(source.labels, *columns, source.split_column, node_names, source)
    labels = []
    for part in PARTS:
        if (path := getattr(source, part)) is not None:
            found = read_labels(path, *columns, node_names=node_names)
            labels += [Label(label.node, label.name, part, label.origin) for label in found]
    return labels


def _check_header(table: Table, node_names: Sequence[str]) -> None:
    """Raise if the first line of a table is a row: the name of its first column is one of the sorted nodes."""
    for name in (table.header[0], f"<{table.header[0]}>"):
        position = bisect_left(node_names, name)
        if list(node_names[position : position + 1]) == [name]:
            raise ValueError(
                f"{table.path}: must begin with a line of column names, but its first line is about a node of the "
                f"graph, {table.header[0]}; put a line such as node, class before it"
            )


def read_labels(
    path: LabelTable,
    node_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    node_names: Sequence[str] = (),
    split_by: LabelSource | None = None,
) -> list[Label]:
    """Read a label table; by default its first column names the node and its last other column the class.

    A table without a line of column names is recognised by the sorted ``node_names`` of the graph, and refused. The
    split column holds words, or what ``split_by`` says.
    """
    source = LabelSource(path, node_column=node_column, label_column=label_column, split_column=split_column)
    table, node_column, (column, *_) = label_columns(path, source, node_names)
    labels: dict[str, Label] = {}
    rows = table_rows(table, node_column, split_column, split_by or source)
    for (node, part, origin), name in zip(rows, map(str.strip, table.column(column)), strict=True):
        if name in MISSING_WORDS:
            continue
        known = labels.setdefault(node, Label(node, name, part, origin))
        if (known.name, known.part) != (name, part):
            raise ValueError(
                f'{origin}: {node} is "{name}" here but "{known.name}" in {known.origin}; keep one of them'
                + (', or say `task` "multi-label" (--task multi-label)' if known.part == part else "")
            )
    if table.lines and not labels:
        raise ValueError(f"{table.path}: column {column} must hold some classes to learn, got none")
    return list(labels.values())


def label_columns(path: FilePath, source: LabelSource, node_names: Sequence[str]) -> tuple[Table, str, list[str]]:
    """Return a label table, the name of its column of nodes, and those of its columns to learn."""
    table, node_column = read_table(path), source.node_column
    if node_column is None:
        _check_header(table, node_names)
        node_column = table.header[0]
    columns = [source.label_column] if isinstance(source.label_column, str) else list(source.label_column or ())
    if not columns:
        others = [name for name in table.header if name not in (node_column, source.split_column)]
        if not others:
            hint = separator_hint(table.header)
            raise ValueError(f"{table.path}: must have a column of classes beside {node_column}, got none{hint}")
        columns = others[-1:]
    return table, node_column, columns


def table_rows(
    table: Table, node_column: str, split_column: str | None, source: LabelSource
) -> Iterator[tuple[str, str | None, str]]:
    """Yield the node, the part and the origin of each row of a label table."""
    nodes = table.column(node_column)
    origins = [f"{table.path}, line {line}" for line in table.lines]
    parts: list[str | None] = [None] * len(nodes)
    if split_column is not None:
        values = [value.strip() for value in table.column(split_column)]
        found = column_parts(source.split or "column", values, source.shares, source.seed, origins.__getitem__)
        for part, rows in zip(PARTS, found, strict=True):
            for row in rows.tolist():
                parts[row] = part
    for node, own, origin in zip(map(str.strip, nodes), parts, origins, strict=True):
        if not node:
            raise ValueError(f"{origin}: the node must not be empty")
        yield node, own, origin


def take_labels(triples: Triples, predicate: str) -> tuple[Triples, list[Label]]:
    """Return the classes that a predicate gives to its subjects, and the triples without these and their inverses."""
    rest, iri, pairs = split_by_predicate(triples, predicate)
    labels: dict[str, Label] = {}
    for node, name in pairs:
        if node in labels:
            raise ValueError(
                f"{node} must have one value of {iri}, got {labels[node].name} and {name}; keep one, or say `task` "
                '"multi-label" (--task multi-label)'
            )
        labels[node] = Label(node, name, None, f"predicate {iri}")
    return rest, list(labels.values())


def split_by_predicate(triples: Triples, predicate: str) -> tuple[Triples, str, list[tuple[str, str]]]:
    """Return the triples without those of a predicate and their inverses, its IRI, and its subjects and objects."""
    iri = f"<{predicate.strip('<>')}>"
    if iri not in triples.relation_names:
        known = ", ".join(triples.relation_names[:5])
        raise ValueError(f"`label_predicate` must be a predicate of the graph, got {iri}; it has {known}, ...")
    subject, relation, value = triples.edges.T
    labelling = relation == triples.relation_names.index(iri)
    ids = zip(subject[labelling].tolist(), value[labelling].tolist(), strict=True)
    pairs = [(triples.node_names[subject_id], triples.node_names[class_id]) for subject_id, class_id in ids]
    size = len(triples.node_names)
    inverse = np.isin(value * size + subject, subject[labelling] * size + value[labelling])
    return triples.keep(~labelling & ~inverse)[0], iri, pairs


def choose_titles(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return one title of each node from pairs of a node and a literal: English or without language before others."""
    titles: dict[str, tuple[bool, str]] = {}
    for node, literal in pairs:
        if literal[0] == '"':
            text, language = split_literal(literal)
            is_foreign = language.startswith("@") and not language.startswith("@en")
            titles[node] = min(titles.get(node, (True, "\U0010ffff")), (is_foreign, text))
    return {node: text for node, (_, text) in titles.items()}


def similar_node(name: str, node_names: Sequence[str]) -> str:
    """Return the name of a node to show beside an unknown one.

    That is one which ends as the unknown name does or else, without literals, one with the longest common beginning.
    """
    ending = f"/{name.strip('<>/')}>"
    if found := next((node for node in node_names[:MOST_COMPARED] if node.endswith(ending)), None):
        return found
    wanted = name if name[:1] in ("<", "_") else f"<{name}"
    position = bisect_left(node_names, wanted)
    near = [node for node in node_names[max(position - 1, 0) : position + 1] if node[0] != '"']
    if not near:
        return next((node for node in node_names if node[0] != '"'), node_names[0])
    return max(near, key=lambda node: _common(node, wanted))


def _common(one: str, other: str) -> int:
    """Return the number of equal characters at the beginning of two texts."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def match_labels(labels: Sequence[Label], node_names: Sequence[str], skip_unknown: bool) -> NodeLabels:
    """Return labels by node id.

    Args:
        labels: labels by name.
        node_names: names of all nodes; if it has a method ``find``, that is used to find ids.
        skip_unknown: leave out labels of nodes that are not in the graph.
    """
    find = getattr(node_names, "find", None) or {name: node for node, name in enumerate(node_names)}.get
    nodes = [find(label.node) for label in labels]
    for position, node in enumerate(nodes):
        if node is None:  # label tables usually write IRIs without brackets
            nodes[position] = find(f"<{labels[position].node}>")
    unknown = [label for label, node in zip(labels, nodes, strict=True) if node is None]
    if unknown and not skip_unknown:
        if not node_names:
            raise ValueError(
                f"{unknown[0].origin}: the graph must have edges, got none, so no label has a node; check the RDF file"
            )
        raise ValueError(
            f"{unknown[0].origin}: node {unknown[0].node} is not in the graph, which has nodes such as "
            f"{similar_node(unknown[0].node, node_names)} ({len(unknown)} of {len(labels)} labels unknown); pass "
            "`skip_unknown` (--skip-unknown) to drop them"
        )
    matched: dict[int, Label] = {}
    for label, node in zip(labels, nodes, strict=True):
        if node is not None:
            other = matched.setdefault(node, label)
            if (other.name, other.part) != (label.name, label.part):
                raise ValueError(
                    f"{label.origin}: {label.node} has a label in {other.origin} already; keep one of them"
                )
    class_names = tuple(sorted({label.name for label in matched.values()}))
    class_id = {name: number for number, name in enumerate(class_names)}
    part_id: dict[str | None, int] = {None: -1} | {part: number for number, part in enumerate(PARTS)}
    return NodeLabels(
        nodes=torch.tensor(list(matched), dtype=torch.long),
        classes=torch.tensor([class_id[label.name] for label in matched.values()], dtype=torch.long),
        class_names=class_names,
        parts=torch.tensor([part_id[label.part] for label in matched.values()], dtype=torch.int8),
        num_unknown=len({label.node for label in unknown}),
    )
