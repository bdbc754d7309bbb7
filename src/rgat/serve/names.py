"""Complete the names of nodes: find those whose name or title has the typed text in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from rgat.predictor.words import short

MOST_SEEN = 2000  # matches that are ranked; of a text that is everywhere, the first


class NameIndex:
    """The names and titles of nodes, without literals, as one text that is searched at once."""

    def __init__(self, names: Sequence[str], titles: Mapping[str, str]) -> None:
        self.names = [name for name in names if not name.startswith('"')]
        self.titles = [titles.get(name, "") for name in self.names]
        self.starts: list[int] = []
        parts, position = [], 0
        for name, title in zip(self.names, self.titles, strict=True):
            part = f"{title}\t{name}\n".lower().replace("\n", " ")
            self.starts.append(position)
            parts.append(part + "\n")
            position += len(part) + 1
        self.text = "".join(parts)

    def search(self, wanted: str, most: int) -> list[tuple[str, str]]:
        """Return name and title of the best matches: whole short names or titles, then beginnings, then short names."""
        wanted = wanted.strip().lower().replace("\n", " ")
        found: list[int] = []
        position = self.text.find(wanted) if wanted else -1
        while position >= 0 and len(found) < MOST_SEEN:
            entry = bisect_right(self.starts, position) - 1
            found.append(entry)
            after = self.starts[entry + 1] if entry + 1 < len(self.starts) else len(self.text)
            position = self.text.find(wanted, after)
        found.sort(key=lambda entry: self._rank(entry, wanted))
        return [(self.names[entry], self.titles[entry]) for entry in found[:most]]

    def _rank(self, entry: int, wanted: str) -> tuple[bool, bool, int, str]:
        shown = (self.titles[entry].lower(), short(self.names[entry]).lower())
        is_whole, is_start = wanted in shown, any(text.startswith(wanted) for text in shown)
        return not is_whole, not is_start, len(self.names[entry]), self.names[entry]
