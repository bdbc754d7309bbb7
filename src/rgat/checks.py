"""Checks of options, each with one clear sentence, the nearest word suggested."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real


def check_word(name: str, given: object, allowed: Sequence[str]) -> None:
    """Raise unless ``given`` is one of the ``allowed`` words."""
    if given in allowed:
        return
    words = [f'"{word}"' for word in allowed]
    listed = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
    shown = f'"{given}"' if isinstance(given, str) else repr(given)
    beginnings = [word for word in allowed if isinstance(given, str) and given and word.startswith(given)]
    nearest = beginnings or difflib.get_close_matches(str(given), allowed, n=1)
    hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
    raise ValueError(f"`{name}` must be {listed}, got {shown}{hint}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}")


def check_number(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value!r}")


def check_seed(seed: int) -> None:
    """Raise unless ``seed`` can be one."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"`seed` (--seed) must be a whole number from 0 to 2^32 - 1, got {seed!r}")
