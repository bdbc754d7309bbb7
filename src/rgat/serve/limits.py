"""What one request may cost, and refusals in one sentence each."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rgat.checks import check_count


@dataclass(frozen=True)
class Limits:
    """Limits of a service; a request beyond one of them gets an error in one sentence.

    Examples:
        >>> from rgat.serve import Limits
        >>> Limits(num_items=10).seconds
        30
    """

    num_bytes: int = 1 << 20  # of a request's body; more: 413
    num_items: int = 1000  # nodes or molecules in one request; more: 413
    seconds: int = 30  # until the answer; more: 504
    num_requests: int = 256  # at work or waiting at the same time; more: 429

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(field.name, getattr(self, field.name))


class RefusedError(Exception):
    """A request that is answered by an error: its HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def quoted(text: str, most: int = 100) -> str:
    """Return a text of a request for an error message, without its end if it is long."""
    return f'"{text[:most]}..."' if len(text) > most else f'"{text}"'
