"""Progress in a terminal, without one, and as a callback."""

import io
import re
import sys

import pytest
from rich.console import Console

from rgat import progress
from rgat.progress import Stages, Step, shown

NAMES = ["reading", "cross-validation", "training"]
LONG = "5 of 5 folds, epoch 3 of 50, batch 7 of 20, validation accuracy 0.912"


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, which stands still unless a test moves it."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def plain_lines(clock, act, failure=None):
    """The lines that are printed where there is no terminal."""
    file = io.StringIO()
    try:
        with shown(True, NAMES, Console(file=file, width=60)) as stages:
            act(stages)
            if failure is not None:
                raise failure
    except KeyboardInterrupt:
        pass
    text = file.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    return text.splitlines()


def test_plain_lines_tell_stage_epoch_rate_elapsed_and_left(clock):
    def act(stages):
        stages("reading")
        stages("training")
        for second in range(1, 31):
            clock[0] = second
            stages("training", second / 60, f"epoch {second} of 60", 500 * second, "seed nodes")

    assert plain_lines(clock, act) == [
        "stage 1 of 3: reading",
        "stage 3 of 3: training",
        "stage 3 of 3: training, 17%, epoch 10 of 60, 500 seed nodes/s, 0:10, 0:50 left",
        "stage 3 of 3: training, 33%, epoch 20 of 60, 500 seed nodes/s, 0:20, 0:40 left",
        "stage 3 of 3: training, 50%, epoch 30 of 60, 500 seed nodes/s, 0:30, 0:30 left",
        "stage 3 of 3: training, epoch 30 of 60, done in 0:30",
    ]


def test_plain_lines_of_a_day_are_few(clock):
    def act(stages):
        for second in range(0, 86_400, 5):
            clock[0] = second
            stages("training", second / 86_400)

    lines = plain_lines(clock, act)
    assert 50 < len(lines) < 200
    assert lines[-1] == "stage 3 of 3: training, done in 23:59:55"


def test_the_rate_forgets_a_slow_start_and_a_resumed_share(clock):
    def act(stages):
        stages("training", 0.5, "", 1_000, "graphs")
        for second, items in ((100, 1_000), (140, 1_010), (180, 1_410), (220, 1_810)):
            clock[0] = second
            stages("training", 0.5 + (items - 1_000) / 2_000, "", items, "graphs")

    assert plain_lines(clock, act)[-2] == "stage 3 of 3: training, 90%, 10 graphs/s, 3:40, 0:19 left"


def test_an_interrupted_stage_is_called_stopped(clock):
    lines = plain_lines(
        clock, lambda stages: [stages("reading"), stages("reading", 0.5, "9 triples")], KeyboardInterrupt
    )
    assert lines[-1] == "stage 1 of 3: reading, 9 triples, stopped after 0:00"


@pytest.mark.parametrize(("width", "height"), [(20, None), (60, 3), (200, 1)])
def test_a_bar_fits_the_width_of_the_terminal(clock, width, height):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    display = progress._Display(console)
    display.live = None  # no thread draws it
    display.show(Step("cross-validation", number=2, count=7))
    clock[0] = 4.0
    display.show(Step("cross-validation", 0.25, LONG, 99_999, "seed nodes", 2, 7))
    with console.capture() as drawn:
        console.print(display._render())
    lines = re.sub(r"\x1b\[[0-9;]*m", "", drawn.get()).splitlines()
    assert max(map(len, lines)) <= width
    assert height is None or len(lines) == height
    assert " ".join(" ".join(lines).replace("━", "").replace("╸", "").replace("╺", "").split()).endswith(
        f"{LONG}, 25,000 seed nodes/s, 0:04, 0:12 left"
    )
    assert ("━" in lines[0]) == (width >= 60)


def test_a_terminal_keeps_one_line_per_finished_stage():
    file = io.StringIO()
    with shown(True, NAMES, Console(file=file, width=60, force_terminal=True)) as stages:
        stages("reading")
        stages("training", 0.5, "epoch 1 of 2")
    text = file.getvalue()
    assert text.count("done in") == 2
    assert text.rstrip().endswith("stage 3 of 3: training, epoch 1 of 2, done in 0:00")
    assert "\x1b[?25h" in text, "the cursor is shown again"


def test_colours_are_left_out_on_request(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    with shown(True, NAMES, Console(file=file, width=60, force_terminal=True)) as stages:
        stages("training", 0.5)
    assert not re.search(r"\x1b\[[0-9;]*m", file.getvalue())


def test_plain_lines_need_no_library(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.live", None)
    with shown(True, NAMES) as stages:
        stages("reading")
    assert capsys.readouterr().out == "stage 1 of 3: reading\n"


def test_nothing_is_shown_unless_asked_for(capsys):
    with shown(False, NAMES) as stages:
        stages("reading", 1.0, "all")
    assert capsys.readouterr().out == ""


def test_a_callback_gets_every_step_and_stages_are_passed_on():
    steps = []
    with shown(steps.append, NAMES) as outer, shown(outer, ["other"]) as inner:
        assert inner is outer
        outer("training", 0.25, "text", 3, "graphs")
    assert steps == [Step("training", 0.25, "text", 3, "graphs", 3, 3)]


def test_a_job_inside_a_stage_moves_between_two_shares():
    steps = []
    part = Stages(steps.append, ["search"]).part("search", 0.5, 1.0, "configuration 2 of 2")
    with shown(part, ["cross-validation", "training"]) as stages:
        stages("training", 0.5, "epoch 1 of 2")
    assert steps == [Step("search", 0.875, "configuration 2 of 2, training, epoch 1 of 2")]
