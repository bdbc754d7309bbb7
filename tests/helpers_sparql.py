"""Serve a graph by the SPARQL protocol: with Oxigraph's own server, or with one that fails on request."""

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs
from urllib.request import urlopen

JSON = "application/sparql-results+json"


def oxigraph_program():
    """Return the path of Oxigraph's server, which the package `oxigraph` installs; None if it is not there."""
    beside = Path(sys.executable).parent / "oxigraph"
    return shutil.which("oxigraph") or (str(beside) if beside.is_file() else None)


@contextlib.contextmanager
def oxigraph_server(dump, folder):
    """Load a dump into a store and serve it on loopback; yield the address and the folder of the store."""
    store = folder / "store"
    subprocess.run([oxigraph_program(), "load", "-l", store, "-f", dump], check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen([oxigraph_program(), "serve", "-l", store, "-b", address], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), urlopen(f"http://{address}/", timeout=5):
                break
            time.sleep(0.05)
        yield f"http://{address}", store
    finally:
        server.terminate()
        server.wait()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):  # where a redirect leads
        self.server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        import pyoxigraph as ox

        given = self.server
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        query, given.requests = form.get("query", ["ASK {}"])[0], given.requests + 1
        fault = given.fault if given.first <= given.requests < given.first + given.times else None
        if fault == "repeated":
            query = re.sub(r"OFFSET \d+", "OFFSET 0", query)
        if fault == "surplus":
            query = re.sub(r"LIMIT \d+", "", query)
        if fault == "missing":
            query = re.sub(r"LIMIT \d+ OFFSET [1-9]\d*", "LIMIT 0", query)
        if fault == "others":
            query = re.sub(r"VALUES (\?\w) \{ [^}]* \}", "", query)
        body, kind = given.store.query(query).serialize(format=ox.QueryResultsFormat.JSON), JSON
        if fault == "unbound":
            body = re.sub(rb'"o":', b'"other":', body)
        if fault in ("literal s", "literal p"):
            body = body.replace(f'"{fault[-1]}":{{"type":"uri"'.encode(), f'"{fault[-1]}":{{"type":"literal"'.encode())
        if fault in ("negative", "few") and "COUNT" in query:
            number = int(re.search(rb'"value":"(\d+)"', body)[1])
            body = body.replace(b'"%d"' % number, b'"%d"' % (number - 1 if fault == "few" else -1))
        body = {"boolean": b'{"head": {}, "boolean": true}', "malformed": body[: len(body) // 2]}.get(fault, body)
        kind = "text/html" if fault == "html" else kind
        status = int(str(fault)[:3]) if str(fault)[:3].isdecimal() else 200
        if fault == "hanging":
            given.ended.wait(5)
        if fault == "dripping headers":
            with contextlib.suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
                while not given.ended.wait(0.05):
                    self.wfile.write(b"x")
            return
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Type", kind)
        if fault == "500 cut":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"ff\r\n" + body
        else:
            self.send_header("Content-Length", str(len(body) + (1000 if fault in ("cut", "500 hanging") else 0)))
        self.end_headers()
        with contextlib.suppress(OSError):
            if fault == "dripping":
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    if given.ended.wait(0.05):
                        return
            self.wfile.write(body[:100] if status == 500 else body)
        if fault == "500 hanging":
            given.ended.wait(5)
        if fault in ("cut", "500 cut"):
            self.close_connection = True


@contextlib.contextmanager
def faulty_server(store):
    """Serve a store on loopback; its attributes `fault`, `first` and `times` say how and when requests go wrong."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.store, server.requests, server.ended = store, 0, threading.Event()
    server.fault, server.first, server.times = None, 1, 10**9
    server.url = f"http://127.0.0.1:{server.server_port}/query"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
