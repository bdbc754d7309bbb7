"""The command line: each command parses its options, calls one function and prints the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

try:
    import rich  # noqa: F401
    import typer
except ImportError as error:  # pragma: no cover
    raise SystemExit(
        f"the command line needs typer and rich ({error}); install them with `pip install rgat`"
    ) from error

from rgat.cli import baseline, data, demo, doctor, explain, predict, report, reproduce, search, train

app = typer.Typer(
    help="Learn from relational graphs with relational graph attention networks.\n\n\b\nExample:\n  rgat demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # wrong options and commands; Typer does not export this class


def _version(asked: bool) -> None:
    if asked:
        from rgat.version import __version__

        print(f"rgat {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for command in (demo.demo, train.train, predict.predict, explain.explain):
    app.command()(command)
app.add_typer(data.app, name="data")
for command in (search.search, reproduce.reproduce, baseline.baseline, report.report, doctor.doctor):
    app.command()(command)


def _repeat_option(option: str, arguments: Sequence[str]) -> list[str]:
    """Write `--tasks A B` as `--tasks A --tasks B`, which the parser knows."""
    words: list[str] = []
    inside = False
    for word in arguments:
        inside = word == option or (inside and not word.startswith("-"))
        words += [option, word] if inside and word != option and words[-1] != option else [word]
    return words


def main() -> None:
    """Entry point of `rgat`: a user's mistake ends with one sentence and exit code 2."""
    try:
        code = app(_repeat_option("--tasks", sys.argv[1:]), standalone_mode=False)
        sys.stdout.flush()
    except USAGE_ERROR as error:
        # Without a command the help is printed, and asked for.
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            raise SystemExit(0) from None
        print(f"rgat: {error.format_message()} (rgat --help lists what there is)", file=sys.stderr)
        raise SystemExit(2) from None
    except typer.Abort:
        raise SystemExit(130) from None
    except (ValueError, ImportError) as error:
        print(f"rgat: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:  # the system refuses to read or write, and no code below said it better
        file = "" if error.filename is None else f"{error.filename}: "
        print(f"rgat: {file}{error.strerror or error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # Python would flush again at exit, and print a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(2) from None
    raise SystemExit(code or 0)


if __name__ == "__main__":
    main()
