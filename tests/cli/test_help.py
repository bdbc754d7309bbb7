import re

import pytest
import typer
from typer.main import get_command

from rgat.cli import app


def commands(command, path=()):
    """All commands with the words that call them, groups included."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(get_command(app)))


def page(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = COMMANDS[path]
    return command.get_help(typer.Context(command, info_name=" ".join(("rgat", *path))))


def test_all_commands_are_visited():
    assert len(COMMANDS) == 18


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "rgat")
def test_a_help_page_has_one_sentence_an_example_and_a_sentence_per_option(path, monkeypatch):
    text = page(path, monkeypatch)
    usage, description, *_ = text.split("\n\n")
    assert usage.startswith(" ".join(("Usage: rgat", *path)))
    assert re.fullmatch(r"  [A-Z][^.]*\.", description), "one sentence"
    assert re.search(rf"Examples?:\n(.*\n)*? +{' '.join(('rgat', *path))}\b", text)
    assert all(option.help and option.help[0] != " " for option in COMMANDS[path].params)
    assert max(map(len, text.splitlines())) <= 80


def test_the_list_of_commands_shows_whole_sentences(monkeypatch):
    for path in ((), ("data",)):
        cut = [line for line in page(path, monkeypatch).splitlines() if line.endswith("...") and "ARGS" not in line]
        assert cut == []


def test_the_options_of_train_come_in_groups(monkeypatch):
    text = page(("train",), monkeypatch)
    sections = dict(re.findall(r"^([A-Z][^\n]*):\n((?:  .*\n?|\n(?=  ))+)", text, re.MULTILINE))
    titles = ["Arguments", "Options", "Your graph", "Your molecules", "Training", "Model"]
    assert [title for title in sections if title in titles] == titles
    for title, option in {
        "Options": "--out",
        "Your graph": "--rdf",
        "Your molecules": "--smiles",
        "Model": "--hidden",
        "Training": "--epochs",
    }.items():
        assert [name for name in titles if f"  {option} " in sections[name]] == [title]
