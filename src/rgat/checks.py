"""Check the values of options, and raise a ValueError that says what is allowed and what was given."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real


def check_word(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise unless ``value`` is one of the ``allowed`` words; suggest the nearest of them."""
    if value in allowed:
        return
    quoted = [f'"{word}"' for word in allowed]
    choices = quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    completions = [word for word in allowed if isinstance(value, str) and value and word.startswith(value)]
    nearest = completions or difflib.get_close_matches(str(value), allowed, n=1)
    hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
    raise ValueError(f"`{name}` must be {choices}, got {shown}{hint}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}")


def check_number(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value!r}")


def check_seed(seed: int) -> None:
    """Raise unless ``seed`` is a random seed that NumPy accepts: an unsigned 32-bit integer."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"`seed` (--seed) must be a whole number from 0 to 2^32 - 1, got {seed!r}")
