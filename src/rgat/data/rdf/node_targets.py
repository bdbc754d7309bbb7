"""Targets of a knowledge graph's nodes other than one class each: numbers, several labels, several columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from rgat.data.dataset import MISSING, PARTS
from rgat.data.rdf.labels import Label, LabelSource, label_columns, match_labels, split_by_predicate, table_rows
from rgat.data.rdf.reader import Triples, split_literal
from rgat.data.splits import stratified_parts
from rgat.data.targets import (
    MISSING_WORDS,
    TargetTable,
    find_kind,
    is_like_number,
    kinds_of,
    output_names,
    read_targets,
    split_labels,
    standardise,
    strata,
)


class NodeCells(NamedTuple):
    """Cells to learn, by column, of each row of a table or triple of a predicate."""

    nodes: list[str]
    parts: list[str | None]
    origins: list[str]
    columns: dict[str, list[str]]
    table: str  # where all come from


def find_cells(triples: Triples, source: LabelSource) -> tuple[Triples, NodeCells] | None:
    """Return what nodes are to learn, and the triples that remain as the graph; None where each has one class."""
    if source.label_predicate is None:
        cells = table_cells(source, triples.node_names)
    else:
        triples, cells = _from_predicate(triples, source.label_predicate)
        cells = None if _has_classes(cells, source) else cells
    return None if cells is None else (triples, cells)


def table_cells(source: LabelSource, node_names: Sequence[str]) -> NodeCells | None:
    """Return what nodes are to learn by the tables of a source; None where each has one class."""
    cells = _from_tables(source, node_names)
    return None if cells is None or _has_classes(cells, source) else cells


def _has_classes(cells: NodeCells, source: LabelSource) -> bool:
    """Return whether the cells are one column of classes."""
    if len(cells.columns) > 1:
        return False
    ((name, column),) = cells.columns.items()
    kind = kinds_of(source.task, [name]).get(name)
    return kind == "multi-class" if kind else not _is_number_or_labels([cell.strip() for cell in column])


def _is_number_or_labels(cells: Sequence[str]) -> bool:
    """Return whether cells are found to be numbers, some with a fraction, or lists of labels that occur repeatedly.

    Whole numbers may be names of classes: they are numbers only if the task says so.
    """
    kind = find_kind(cells)
    if kind == "regression":
        return any(is_like_number(cell) and ("." in cell or "," in cell) for cell in cells)
    if kind != "multi-label":
        return False
    labels = [label for cell in cells for label in split_labels(cell, "|")]
    return len(set(labels)) < len(labels)


def _from_tables(source: LabelSource, node_names: Sequence[str]) -> NodeCells | None:
    found = NodeCells([], [], [], {}, "")
    files = {None: source.labels} if source.labels is not None else {part: getattr(source, part) for part in PARTS}
    for part, path in files.items():
        if path is None:
            continue
        table, node_column, columns = label_columns(path, source, node_names)
        # The last columns of several files may have different names.
        for name, column in zip(list(found.columns) or columns, columns, strict=True):
            found.columns.setdefault(name, []).extend(table.column(column))
        split_column = source.split_column if part is None else None
        for node, own_part, origin in table_rows(table, node_column, split_column, source):
            found.nodes.append(node)
            found.parts.append(own_part if part is None else part)
            found.origins.append(origin)
        found = found._replace(table=found.table or str(table.path))
    return found if found.columns else None


def _from_predicate(triples: Triples, predicate: str) -> tuple[Triples, NodeCells]:
    rest, iri, pairs = split_by_predicate(triples, predicate)
    nodes = [node for node, _ in pairs]
    values = [split_literal(value)[0] if value.startswith('"') else value for _, value in pairs]
    name, origins = iri.strip("<>"), [f"predicate {iri} of {node}" for node in nodes]
    return rest, NodeCells(nodes, [None] * len(nodes), origins, {name: values}, f"predicate {iri}")


def _one_row_each(cells: NodeCells, source: LabelSource) -> NodeCells:
    """Join the rows of each node: labels of several rows together, other cells if they are equal."""
    kinds = kinds_of(source.task, tuple(cells.columns))
    row_of: dict[str, int] = {}
    joined = NodeCells([], [], [], {name: [] for name in cells.columns}, cells.table)
    for row, (node, part, origin) in enumerate(zip(cells.nodes, cells.parts, cells.origins, strict=True)):
        own = {name: column[row].strip() for name, column in cells.columns.items()}
        place = row_of.setdefault(node, len(joined.nodes))
        if place == len(joined.nodes):
            joined.nodes.append(node)
            joined.parts.append(part)
            joined.origins.append(origin)
            for name, cell in own.items():
                joined.columns[name].append(cell)
            continue
        for name, cell in own.items():
            known = joined.columns[name][place]
            is_label = kinds.get(name) == "multi-label"
            if joined.parts[place] != part or (known != cell and not is_label):
                raise ValueError(
                    f'{origin}: {node} is "{cell}" here but "{known}" in {joined.origins[place]}; keep one of them'
                    + ("" if joined.parts[place] != part else ', or say `task` "multi-label" (--task multi-label)')
                )
            if is_label and cell not in MISSING_WORDS:
                joined.columns[name][place] = f"{known}|{cell}"
    return joined


def attach(cells: NodeCells, node_names: Sequence[str], source: LabelSource) -> tuple[dict[str, Any], int]:
    """Return the fields of a data set that hold targets, values and parts, and the number of nodes left out."""
    cells = _one_row_each(cells, source)
    if not cells.nodes:
        raise ValueError(f"{cells.table}: must have rows below the column names, got none")
    table = read_targets(cells.columns, cells.origins, cells.table, source.task, source.censored)
    columns = zip(cells.nodes, cells.parts, cells.origins, strict=True)
    labels = [Label(node, str(row), part, origin) for row, (node, part, origin) in enumerate(columns)]
    matched = match_labels(labels, node_names, source.skip_unknown)
    rows = torch.tensor([int(matched.class_names[number]) for number in matched.classes.tolist()], dtype=torch.long)
    has_value = ~table.values[rows].isnan().all(1)
    rows, nodes, parts = rows[has_value], matched.nodes[has_value], matched.parts[has_value]
    values = torch.full((len(node_names), table.values.shape[1]), torch.nan, dtype=torch.float64)
    values[nodes] = table.values[rows]
    bounds = None
    if table.bounds is not None:
        bounds = torch.zeros(values.shape, dtype=torch.int8)
        bounds[nodes] = table.bounds[rows]
    unsplit = nodes[parts < 0].sort().values
    split = [nodes[parts == part] for part in range(len(PARTS))]
    if len(unsplit):
        found = stratified_parts(strata(table.targets, values[unsplit]), source.shares, source.seed)
        split = [unsplit[part] for part in found]
    targets = standardise(TargetTable(table.targets, values, bounds), split[0])
    fields: dict[str, Any] = {"values": values, "bounds": bounds, "targets": targets}
    fields |= {"classes": output_names(targets), "labels": torch.where(values.isnan().all(1), MISSING, 0)}
    return fields | dict(zip(PARTS, split, strict=True)), matched.num_unknown
