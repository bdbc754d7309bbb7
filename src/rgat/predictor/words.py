"""Words for the reader: short names, and counts with their noun."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rgat.data.dataset import INVERSE


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number and a noun in its singular or plural form."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int = 20) -> str:
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
