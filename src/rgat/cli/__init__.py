"""The command line: each command parses its options, calls one function and prints the result."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import rich  # noqa: F401
    import typer
except ImportError as error:  # pragma: no cover
    raise SystemExit(
        f"the command line needs typer and rich ({error}); install them with `pip install rgat`"
    ) from error

from rgat.cli import baseline, data, demo, doctor, explain, export, predict, report, reproduce, search, serve, train
from rgat.cli.options import GroupedCommand

app = typer.Typer(
    help="Learn from relational graphs with relational graph attention networks.\n\n\b\nExample:\n  rgat demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # wrong options and commands; Typer does not export this class


def _print_version(is_given: bool) -> None:
    if is_given:
        from rgat.version import __version__

        print(f"rgat {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for command in (demo.demo, train.train, predict.predict, explain.explain, export.export, serve.serve):
    app.command(cls=GroupedCommand)(command)
app.add_typer(data.app, name="data")
for command in (search.search, reproduce.reproduce, baseline.baseline, report.report, doctor.doctor):
    app.command(cls=GroupedCommand)(command)


def _repeat_option(option: str, arguments: Sequence[str]) -> list[str]:
    """Write `--tasks A B` as `--tasks A --tasks B`, the form that Typer parses."""
    words: list[str] = []
    inside = False
    for word in arguments:
        inside = word == option or (inside and not word.startswith("-"))
        words += [option, word] if inside and word != option and words[-1] != option else [word]
    return words


def _fail(sentence: str) -> NoReturn:
    """Print one sentence and exit; of the processes of `torchrun`, one prints, and its summary has the sentence."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0":
        print(f"rgat: {sentence}", file=sys.stderr)
    if summary := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        message = {"message": sentence, "extraInfo": {"timestamp": int(time.time())}}
        Path(summary).write_text(json.dumps({"message": message}))
    raise SystemExit(2) from None


def main() -> None:
    """Run the command line; a user's mistake ends with one sentence and exit code 2."""
    try:
        code = app(_repeat_option("--tasks", sys.argv[1:]), standalone_mode=False)
        sys.stdout.flush()
    except USAGE_ERROR as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            _fail(f"{error.format_message()} (see `rgat --help`)")
        print(error.format_message())  # the help page, which a group without a command prints
        code = 0
    except typer.Abort:
        raise SystemExit(130) from None
    except (ValueError, ImportError) as error:
        _fail(str(error))
    except (RuntimeError, MemoryError) as error:
        from rgat.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _fail(
            "memory ran out; give this process more, or make the work smaller (of training: --embedding, --batch-size "
            "and --fanouts)"
        )
    except OSError as error:  # the system refuses to read or write, and no code below said it better
        try:
            sys.stdout.flush()
        except OSError:  # Python would flush again at exit, and print a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"{'' if error.filename is None else f'{error.filename}: '}{error.strerror or error}")
    raise SystemExit(code or 0)
