"""A progress bar over epochs, with the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def epoch_bar(total: int, show: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function to call after every epoch with what to say beside the bar; it does nothing unless shown."""
    if not show:
        yield lambda text: None
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        raise ImportError("`progress=True` needs rich; install it with `pip install rich`") from error
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("epochs,"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, TextColumn("{task.description}")) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)
