"""The command line: parse, call one function, print."""

from __future__ import annotations


def main() -> None:
    """Entry point of `rgat`."""
    raise SystemExit("not yet")
