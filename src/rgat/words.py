"""Checks of option words, with the nearest word suggested."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def check_word(name: str, given: object, allowed: Sequence[str]) -> None:
    """Raise unless ``given`` is one of the ``allowed`` words."""
    if given in allowed:
        return
    words = [f'"{word}"' for word in allowed]
    listed = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
    shown = f'"{given}"' if isinstance(given, str) else repr(given)
    nearest = difflib.get_close_matches(str(given), allowed, n=1)
    hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
    raise ValueError(f"`{name}` must be {listed}, got {shown}{hint}")
