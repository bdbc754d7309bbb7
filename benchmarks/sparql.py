"""Read 100,000 triples from an Oxigraph server on loopback, and compare them with the same triples in a file.

Run with `python benchmarks/sparql.py`; it needs `pip install oxigraph 'rgat[rdf]'`. It starts the server itself, reads
the neighbourhood of labelled nodes from it and, for comparison, from the server's store, and checks that both give the
graph that the file gives.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import torch

from rgat.data import fetch_neighbourhood, from_rdf, prune
from rgat.models import NodeClassifier

WORD = "http://graph.example"


def write_graph(folder: Path, num_triples: int) -> tuple[Path, Path]:
    """Write distinct triples over nodes of very different degrees, one in ten with a literal, and a label table."""
    draw = random.Random(0)
    size, lines = num_triples // 5, dict[str, None]()
    while len(lines) < num_triples:
        subject, relation = draw.randrange(size), draw.randrange(20)
        target = int(size * draw.random() ** 3)
        value = f'"value {target}"' if draw.random() < 0.1 else f"<{WORD}/node/{target}>"
        lines[f"<{WORD}/node/{subject}> <{WORD}/relation/{relation}> {value} .\n"] = None
    dump, labels = folder / "dump.nt", folder / "labels.tsv"
    dump.write_text("".join(lines))
    named = sorted({line.split()[0][1:-1] for line in lines})[:2000]
    labels.write_text("node\tclass\n" + "".join(f"{node}\tclass {n % 3}\n" for n, node in enumerate(named)))
    return dump, labels


def serve(store: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server on a free port and wait until it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    program = shutil.which("oxigraph") or str(Path(sys.executable).parent / "oxigraph")
    server = subprocess.Popen([program, "serve", "--location", store, "--bind", address], stderr=subprocess.DEVNULL)
    for _ in range(100):
        try:
            with urlopen(f"http://{address}/", timeout=5):
                return server, f"http://{address}/query"
        except (URLError, ConnectionError):
            time.sleep(0.1)
    server.kill()
    raise SystemExit("the server did not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--triples", type=int, default=100_000)
    parser.add_argument("--hops", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dump, labels = write_graph(folder, options.triples)
        program = shutil.which("oxigraph") or str(Path(sys.executable).parent / "oxigraph")
        load = [program, "load", "--location", folder / "store", "--file", dump]
        subprocess.run(load, check=True, capture_output=True)
        server, url = serve(folder / "store")
        try:
            start = time.perf_counter()
            fetched = fetch_neighbourhood(url, folder / "fetched.nt", labels, hops=options.hops)
            seconds = time.perf_counter() - start
        finally:
            server.terminate()
            server.wait()
        start = time.perf_counter()
        stored = fetch_neighbourhood(folder / "store", folder / "stored.nt", labels, hops=options.hops)
        from_store = time.perf_counter() - start
        lines = [set((folder / f"{which}.nt").read_text().splitlines()) for which in ("fetched", "stored")]
        assert lines[0] == lines[1]
        assert lines[0] <= set(dump.read_text().splitlines())
        assert len(lines[0]) == fetched.triples == stored.triples
        whole = prune(from_rdf(dump, labels), options.hops)
        part = prune(from_rdf(folder / "fetched.nt", labels), options.hops)
        assert (whole.node_names, whole.graph.num_edges) == (part.node_names, part.graph.num_edges)
        torch.manual_seed(0)
        model = NodeClassifier(8, 3, whole.graph.num_relations, num_layers=options.hops).eval()
        x = torch.randn(whole.graph.num_nodes, 8)
        assert torch.equal(model(x, whole.graph)[whole.train], model(x, part.graph)[part.train])
    print(f"{fetched.triples:,} of {options.triples:,} triples, of {fetched.nodes:,} nodes, {options.hops} hops")
    print(f"from the server: {seconds:.1f} s, {fetched.triples / seconds:,.0f} triples/s")
    print(f"from its store:  {from_store:.1f} s, {fetched.triples / from_store:,.0f} triples/s")
    print("a model gives the labelled nodes the outputs that it gives them on the whole graph")


if __name__ == "__main__":
    main()
