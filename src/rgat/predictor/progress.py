"""Progress of a fit: what is being done, and how much of it is done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]


def no_progress(what: str, share: float) -> None:
    """Show nothing."""
