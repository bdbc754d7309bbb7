"""`rgat serve`."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from rgat.cli.options import ModelFolder
from rgat.cli.printing import print_line


def serve(
    model: ModelFolder,
    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one.")] = 8000,
    max_bytes: Annotated[int, Option(min=1, metavar="N", help="Largest body of a request.")] = 1 << 20,
    max_items: Annotated[int, Option(min=1, metavar="N", help="Most nodes or molecules in a request.")] = 1000,
    max_seconds: Annotated[int, Option(min=1, metavar="N", help="Longest time to an answer.")] = 30,
    max_requests: Annotated[int, Option(min=1, metavar="N", help="Most requests at a time.")] = 256,
) -> None:
    """Answer requests over HTTP, with a page for people.

    \b
    Examples:
      rgat serve model
      rgat serve model --port 0 --max-seconds 5
    """
    from rgat.predictor import load
    from rgat.serve import Limits, run
    from rgat.serve.server import is_loopback

    limits = Limits(max_bytes, max_items, max_seconds, max_requests)
    if not is_loopback(host):
        print_line(f"{host} can be reached from elsewhere, and the service asks nobody for a password.")
    run(load(model), host, port, limits, started=lambda url: print_line(f"{model}: open {url} (Ctrl-C stops)"))
    print_line("stopped")
