"""Show where a long job stands: a bar in a terminal; elsewhere plain lines, at the ends of stages and now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SECONDS = 10.0  # between plain lines; in a long stage they get rarer
GROWTH = 0.05  # of the time since the start of the stage, so that a day takes some hundred lines
WINDOW = 30.0  # seconds; rates are those of the last one or two windows, without the compilation at the start
LEAST_BAR, WIDEST_BAR = 10, 40  # columns


@dataclass(frozen=True)
class Step:
    """Where a job stands: in stage ``number`` of ``count``, of which the ``share`` from 0 to 1 is done."""

    stage: str
    share: float = 0.0
    text: str = ""  # such as "epoch 3 of 50, validation accuracy 0.912"
    items: float = 0.0  # processed in this stage so far
    unit: str = ""  # plural noun of the items; without one no rate is shown
    number: int = 1
    count: int = 1

    @property
    def title(self) -> str:
        """Number and name of the stage."""
        return self.stage if self.count == 1 else f"stage {self.number} of {self.count}: {self.stage}"


Show = Callable[[Step], None]


@dataclass(frozen=True)
class Stages:
    """Names the stages of a job, in order, and passes on where each stands."""

    show: Show
    names: Sequence[str]

    def __call__(self, stage: str, share: float = 0.0, text: str = "", items: float = 0.0, unit: str = "") -> None:
        """Tell where a stage stands; the first call starts it, and the next stage ends it."""
        self.show(Step(stage, share, text, items, unit, self.names.index(stage) + 1, len(self.names)))

    def part(self, stage: str, before: float, after: float, text: str = "") -> Show:
        """Return a callback for a job that is part of a stage: the one between two shares of it."""

        def show(step: Step) -> None:
            told = ", ".join(filter(None, (text, step.stage if step.count > 1 else "", step.text)))
            share = (step.number - 1 + step.share) / step.count
            self(stage, before + (after - before) * share, told, step.items, step.unit)

        return show


Progress = bool | Show | Stages  # whether to show anything, who else is told, or the stages of a larger job


@contextmanager
def shown(progress: Progress, names: Sequence[str], console: Any = None) -> Iterator[Stages]:
    """Yield the stages of a job; ``console`` is a Rich console, by default the standard output."""
    if isinstance(progress, Stages):
        yield progress
    elif not isinstance(progress, bool):
        yield Stages(progress, names)
    elif not progress:
        yield Stages(lambda step: None, names)
    else:
        display = _Display(console)
        try:
            yield Stages(display.show, names)
        except BaseException:
            display.close("stopped after")
            raise
        display.close("done in")


class _Display:
    """Draws one stage at a time."""

    def __init__(self, console: Any) -> None:
        try:
            from rich.console import Console
            from rich.live import Live

            self.console = console or Console()
        except ImportError:  # plain lines need no library
            self.console = None
        self.step: Step | None = None
        self.live = None
        if self.console is not None and self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def show(self, step: Step) -> None:
        """Note where the job stands, and print it if it is time."""
        now = time.monotonic()
        if self.step is None or self.step.number != step.number or self.step.stage != step.stage:
            self._end("done in")
            self.started = self.printed = now
            self.before = self.middle = (now, step.share, step.items)
            self.said, self.step = step.text, step  # last, because a thread draws it
            if self.live is None:
                self._print(", ".join(filter(None, (step.title, step.text))))
            elif not self.live.is_started:
                self.live.start(refresh=True)
        if step.items < self.step.items:  # it counts anew
            self.before = self.middle = (now, step.share, step.items)
        elif now - self.middle[0] > WINDOW:
            self.before, self.middle = self.middle, (now, step.share, step.items)
        self.step = step
        if self.live is None and now - self.printed >= max(SECONDS, GROWTH * (now - self.started)):
            self.printed = now
            self._print(", ".join((step.title, f"{step.share:.0%}", *self._facts(step))))

    def close(self, word: str) -> None:
        """End the last stage; ``word`` says how."""
        if self.live is not None:
            self.live.stop()
        self._end(word)

    def _end(self, word: str) -> None:
        step, self.step = self.step, None
        if step is None:
            return
        seconds = time.monotonic() - self.started
        if self.live is not None or step.text != self.said or seconds >= SECONDS:
            self._print(", ".join(filter(None, (step.title, step.text, f"{word} {_clock(seconds)}"))))

    def _facts(self, step: Step) -> list[str]:
        """Return the text of a step, its rate, and the elapsed and remaining time of its stage."""
        now, facts = time.monotonic(), [step.text] if step.text else []
        since, share, items = self.before
        seconds = now - since
        if step.unit and step.items > items and seconds > 0:
            rate = (step.items - items) / seconds
            facts.append(f"{rate:,.{0 if rate >= 10 else 1}f} {step.unit}/s")
        facts.append(_clock(now - self.started))
        if step.share > share and step.share < 1:
            facts.append(f"{_clock((1 - step.share) / (step.share - share) * seconds)} left")
        return facts

    def _print(self, line: str) -> None:
        if self.console is None:
            print(line, flush=True)
        else:
            self.console.print(line, highlight=False, markup=False, soft_wrap=self.live is None)

    def _render(self) -> Any:
        """Return the title, a bar and the facts: in one line, or where this is too narrow the facts below."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self.step is None:
            return Text()
        step, facts = self.step, ", ".join(self._facts(self.step))
        room = self.console.width - len(step.title) - 1
        is_wide = room - len(facts) - 1 >= LEAST_BAR
        width = min(WIDEST_BAR, room - len(facts) - 1 if is_wide else room)
        line = Table.grid(padding=(0, 1), pad_edge=False)
        line.add_row(
            Text(step.title, no_wrap=True, overflow="ellipsis"),
            *([ProgressBar(1.0, min(step.share, 1.0), width=width)] if width >= LEAST_BAR else []),
            *([Text(facts, no_wrap=True)] if is_wide else []),
        )
        return line if is_wide else Group(line, Text(facts))


def _clock(seconds: float) -> str:
    """Return a time as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
