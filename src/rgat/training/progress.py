"""Progress of a training: a callback, and a bar over epochs with the remaining time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, float], None]  # called with the name of a step and its finished share, from 0 to 1


def no_progress(step: str, share: float) -> None:
    """Show nothing."""


@contextmanager
def epoch_bar(total: int, show: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function to call after every epoch with the text beside the bar; it does nothing unless ``show``."""
    if not show:
        yield lambda text: None
        return
    try:
        import rich.progress as rich
    except ImportError as error:
        raise ImportError("`progress=True` needs rich; install it with `pip install rich`") from error
    counts = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TextColumn("epochs,"))
    times = (rich.TimeRemainingColumn(), rich.TextColumn("left"), rich.TextColumn("{task.description}"))
    with rich.Progress(*counts, *times) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)
