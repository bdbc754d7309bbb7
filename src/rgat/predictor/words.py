"""Words for the reader: short names, and counts with their noun."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rgat.data import NodeData
from rgat.data.dataset import INVERSE
from rgat.data.rdf.labels import RDFS_LABEL, choose_titles


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number and a noun in its singular or plural form."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int = 40) -> str:
    """Return short names with commas, of many only the first and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(short, names[:most])) + more


def short(name: str) -> str:
    """Return the last part of an IRI, or the value of a literal."""
    prefix = INVERSE if name.startswith(INVERSE) else ""
    name = name.removeprefix(prefix)
    if name.startswith('"'):
        return prefix + name[: name.rindex('"') + 1]
    bare = name[1:-1] if name.startswith("<") and name.endswith(">") else name
    if "://" not in bare:
        return prefix + bare
    parts = [part for part in re.split(r"[/#]", bare) if part]
    # A number alone is ambiguous: keep person/3.
    return prefix + ("/".join(parts[-2:]) if parts[-1].isdigit() and len(parts) > 3 else parts[-1])


def titles_of(data: NodeData) -> dict[str, str]:
    """Return the `rdfs:label` of each node, class or relation that has one in the graph, by its name."""
    if RDFS_LABEL not in data.relation_names:
        return dict(data.provenance.get("titles", {}))
    pairs = zip(*(ends.tolist() for ends in edges_of(data, data.relation_names.index(RDFS_LABEL))), strict=True)
    return choose_titles((data.node_names[node], data.node_names[title]) for node, title in pairs)


def edges_of(data: NodeData, relation: int) -> tuple[Tensor, Tensor]:
    """Return the sources and targets of one relation's edges, from memory or from a store."""
    graph: Any = data.graph
    if data.is_stored:
        source, target = graph.incoming.of_relation(relation)
    else:
        source, target = graph.edge_index[:, graph.edge_type == relation]
    return source, target


def titled(name: str, titles: Mapping[str, str]) -> str:
    """Return the short form of a name, and beside it its title in quotes if it has another one."""
    bare = name.removeprefix(INVERSE)
    title = titles.get(bare) or titles.get(f"<{bare}>")
    return short(name) if title is None or title == short(bare) else f'{short(name)} "{title}"'


def titles_among(names: Sequence[str], titles: Mapping[str, str]) -> dict[str, str]:
    """Return the titles of some names only, for a record of them."""
    wanted = {form for name in names for form in (name.removeprefix(INVERSE), f"<{name}>")}
    return {name: titles[name] for name in sorted(wanted & titles.keys())}
