"""Download code against a real HTTP server on loopback."""

import gzip
import hashlib
import io
import os
import random
import subprocess
import sys
import tarfile
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rgat.data.benchmarks import registry as benchmarks
from rgat.data.benchmarks.download import DownloadError, download, extract
from rgat.data.benchmarks.registry import BENCHMARKS, Benchmark, fetch, load_benchmark

BODY = random.Random(0).randbytes(300_000)
SHA = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hits = 0

    def do_GET(self):
        type(self).hits += 1
        name = self.path.strip("/")
        if name == "gone":
            self.send_error(404)
            return
        if name == "slow-headers":
            self.drip(b"HTTP/1.0 200 OK\r\nX: " + b"x" * 1000)
            return
        body = self.server.files.get(name, BODY)
        self.send_response(200)
        if name != "unsized":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if name == "truncated" or (name == "flaky" and type(self).hits == 1):
            self.wfile.write(body[:1000])
            self.connection.close()
            return
        if name == "slow":
            self.drip(body)
            return
        self.wfile.write(body)

    def drip(self, content):
        """A byte every few milliseconds, until the other side hangs up."""
        with suppress(OSError):
            for place in range(len(content)):
                self.wfile.write(content[place : place + 1])
                self.server.stopped.wait(0.02)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    Handler.hits = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.stopped = {}, threading.Event()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield server
    server.stopped.set()
    server.shutdown()
    server.server_close()
    thread.join()


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize("name", ["file", "unsized", "flaky"])
def test_a_good_file_arrives_whole_even_over_a_connection_that_breaks_once(server, tmp_path, name):
    seen = []
    download(f"{server.url}/{name}", tmp_path / "f", SHA, 10**6, lambda *progress: seen.append(progress))
    assert (tmp_path / "f").read_bytes() == BODY
    assert leftovers(tmp_path) == ["f"]
    assert seen[-1] == (len(BODY), None if name == "unsized" else len(BODY))
    hits = Handler.hits
    download(f"{server.url}/{name}", tmp_path / "f", SHA, 10**6)
    assert Handler.hits == hits  # what is there and right is not fetched again


@pytest.mark.parametrize(
    ("name", "sha", "limit", "message"),
    [
        ("file", "0" * 64, 10**6, r"must have the SHA-256 0000.*, got [0-9a-f]{64}"),
        ("truncated", SHA, 10**6, r"the connection broke 3 times"),
        ("file", SHA, 1000, r"must be at most 1,000 bytes, got 300,000"),
        ("unsized", SHA, 1000, r"must be at most 1,000 bytes"),
        ("gone", SHA, 10**6, r"cannot be reached \(Not Found\)"),
    ],
)
def test_a_bad_file_is_a_clear_error_and_leaves_nothing(server, tmp_path, name, sha, limit, message):
    with pytest.raises(DownloadError, match=message):
        download(f"{server.url}/{name}", tmp_path / "f", sha, limit)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "limits", "message"),
    [
        ("slow", {"time_limit": 0.3}, r"slow: must arrive within 0\.3 s, got no end of it; .* RGAT_DATA names"),
        ("slow-headers", {"time_limit": 0.3}, r"slow-headers: must arrive within 0\.3 s"),
        ("slow", {"timeout": 0.3}, r"must arrive at 1,000 bytes per second or faster, got [0-9]+ bytes in"),
    ],
)
def test_a_download_that_never_ends_is_stopped_and_leaves_nothing(server, tmp_path, name, limits, message):
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(DownloadError, match=message):
        download(f"{server.url}/{name}", tmp_path / "f", SHA, 10**6, **limits)
    assert (tmp_path / "f").read_bytes() == b"old"
    assert leftovers(tmp_path) == ["f"]
    assert Handler.hits == 1
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_bad_download_leaves_the_file_that_was_there(server, tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(DownloadError):
        download(f"{server.url}/file", tmp_path / "f", "0" * 64, 10**6)
    assert (tmp_path / "f").read_bytes() == b"old"


def test_no_server_and_a_folder_that_is_none_are_clear_errors(tmp_path, free_port):
    with pytest.raises(DownloadError, match="cannot be reached"):
        download(f"http://127.0.0.1:{free_port}/x", tmp_path / "f", SHA, 10**6)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"cannot be written \(.*\); make the folder writable"):
        download(f"http://127.0.0.1:{free_port}/x", tmp_path / "file" / "f", SHA, 10**6)


def test_a_read_only_cache_folder_is_a_clear_error(server, tmp_path):
    """Root may write anywhere, so the child drops to another user first."""
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o555)
    code = (
        "import os, sys\n"
        "from rgat.data.benchmarks.download import download\n"
        "from pathlib import Path\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: download(sys.argv[1], Path(sys.argv[2]) / 'f', None, 10**6)\n"
        "except ValueError as error: print(error)\n"
    )
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", code, f"{server.url}/file", folder], capture_output=True, text=True, timeout=60
    )
    assert "cannot be written (Permission denied); make the folder writable" in done.stdout, done.stderr
    assert leftovers(folder) == []


def test_two_processes_at_once_fetch_one_file(server, tmp_path):
    code = (
        "import sys; from rgat.data.benchmarks.download import download; from pathlib import Path;"
        "download(sys.argv[1], Path(sys.argv[2]), sys.argv[3], 10**6)"
    )
    command = [sys.executable, "-c", code, f"{server.url}/file", tmp_path / "f", SHA]
    children = [subprocess.Popen(command) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert (tmp_path / "f").read_bytes() == BODY
    assert Handler.hits == 1
    assert leftovers(tmp_path) == ["f"]


def make_archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def test_only_wanted_members_leave_an_archive(tmp_path):
    archive = make_archive(tmp_path / "a.tgz", [("x/good", b"1"), ("x/other", b"2"), ("good2", b"3")])
    out = tmp_path / "out"
    extract(
        archive, {"good": (out / "good", None), "good2": (out / "sub/good2", hashlib.sha256(b"3").hexdigest())}, 100
    )
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()) == ["good", "sub/good2"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../good", b"1")], r"names in it must stay inside, got \.\./good"),
        ([("/etc/good", b"1")], r"names in it must stay inside, got /etc/good"),
        ([("zeros", bytes(100_000)), ("good", b"1")], r"must unpack to at most 5,000 bytes"),
        ([("good", bytes(100_000))], r"must unpack to at most 5,000 bytes"),
        ([("other", b"1")], r"must hold good, got an archive without"),
        ([("good", None)], r"must hold good, got an archive without"),
        ([("good", b"wrong")], r"good: must have the SHA-256"),
    ],
)
def test_bad_archives_are_refused_and_leave_nothing(tmp_path, members, message):
    archive = make_archive(tmp_path / "a.tgz", members)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(DownloadError, match=message):
        extract(archive, {"good": (out / "good", hashlib.sha256(b"1").hexdigest())}, 5000)
    assert leftovers(out) == []
    assert leftovers(tmp_path) == ["a.tgz", "out"]


def test_a_header_larger_than_the_limit_is_refused(tmp_path):
    archive = make_archive(tmp_path / "a.tgz", [("x" * 5_000_000, b"1"), ("good", b"1")])
    with pytest.raises(DownloadError, match="must unpack to at most 5,000 bytes"):
        extract(archive, {"good": (tmp_path / "good", None)}, 5000)


def test_a_damaged_archive_is_refused(tmp_path):
    archive = make_archive(tmp_path / "a.tgz", [("good", os.urandom(5000))])
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        extract(archive, {"good": (tmp_path / "good", None)}, 10**6)
    archive.write_bytes(b"not an archive at all")
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        extract(archive, {"good": (tmp_path / "good", None)}, 10**6)


GRAPH = b"<http://e/a> <http://e/p> <http://e/b> .\n<http://e/b> <http://e/p> <http://e/c> .\n"
FILES = {
    "toy_stripped.nt.gz": gzip.compress(GRAPH, mtime=0),
    "trainingSet.tsv": b"thing\tclass\nhttp://e/a\tx\n",
    "testSet.tsv": b"thing\tclass\nhttp://e/b\ty\n",
}


@pytest.fixture
def toy(server, tmp_path, monkeypatch):
    """A benchmark of three files in an archive on the server; an empty cache folder; no RGAT_DATA."""
    archive = make_archive(tmp_path / "toy.tgz", [(f"toy/{name}", content) for name, content in FILES.items()])
    server.files["toy.tgz"] = archive.read_bytes()
    hashes = {f"toy/{name}": hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    entry = Benchmark(f"{server.url}/toy.tgz", hashes, {"nodes": 3, "edges": 2, "labelled": 2}, ("thing", "class"))
    monkeypatch.setitem(BENCHMARKS, "toy", entry)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RGAT_DATA", raising=False)
    return tmp_path


def test_a_benchmark_is_fetched_verified_parsed_and_cached(toy, monkeypatch):
    data = load_benchmark("toy")
    assert (data.graph.num_nodes, len(data.train), len(data.test)) == (3, 1, 1)
    assert Handler.hits == 1
    monkeypatch.setattr(benchmarks, "read_triples", None)  # a second load parses nothing
    assert load_benchmark("toy").node_names == data.node_names
    assert Handler.hits == 1
    assert not list((toy / "cache").rglob("*.tgz"))


def test_two_processes_at_once_fetch_one_archive(toy):
    code = (
        "import sys; from rgat.data.benchmarks import registry as b\n"
        "files = dict(zip(sys.argv[2::2], sys.argv[3::2]))\n"
        "b.BENCHMARKS['toy'] = b.Benchmark(sys.argv[1], files, {})\n"
        "b.fetch('toy')"
    )
    entry = BENCHMARKS["toy"]
    pairs = [word for item in entry.files.items() for word in item]
    children = [subprocess.Popen([sys.executable, "-c", code, entry.url, *pairs]) for _ in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert Handler.hits == 1


def test_a_damaged_cache_is_rebuilt(toy):
    expected = load_benchmark("toy")
    (stored,) = (toy / "cache/rgat/parsed").iterdir()
    content = stored.read_bytes()
    rng = random.Random(0)
    flips = [(rng.randrange(len(content)), 1 << rng.randrange(8)) for _ in range(60)]
    flips += [(content.rindex(b"PK\x01\x02") + k, 1) for k in range(46)]
    flipped = [content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :] for place, bit in flips]
    for damage in (b"", content[:100], content[:-30], *flipped):
        stored.write_bytes(damage)
        assert load_benchmark("toy").graph.edge_index.tolist() == expected.graph.edge_index.tolist()


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(toy):
    load_benchmark("toy")
    folder = toy / "cache/rgat/parsed"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_bytes(b"in the way")
    assert load_benchmark("toy").graph.num_nodes == 3


def test_rgat_data_comes_first_and_is_never_written(toy, monkeypatch):
    place = toy / "mine"
    (place / "toy").mkdir(parents=True)
    for name, content in FILES.items():
        (place / "toy" / name).write_bytes(content)
    monkeypatch.setenv("RGAT_DATA", str(place))
    assert {path.parent for path in fetch("toy").values()} == {place / "toy"}
    load_benchmark("toy")
    assert Handler.hits == 0
    assert sorted(path.name for path in place.rglob("*")) == sorted(["toy", *FILES])
    (place / "toy/testSet.tsv").write_bytes(b"changed")
    with pytest.raises(DownloadError, match=r"testSet\.tsv: must have the SHA-256 .*; replace it"):
        fetch("toy")


def test_counts_are_checked(toy, monkeypatch):
    entry = BENCHMARKS["toy"]
    monkeypatch.setitem(BENCHMARKS, "toy", Benchmark(entry.url, entry.files, {"edges": 3}, entry.columns))
    with pytest.raises(ValueError, match="toy: must hold 3 edges, got 2; the file has changed"):
        load_benchmark("toy")


def test_an_unknown_benchmark_is_refused():
    with pytest.raises(ValueError, match=r'`benchmark` must be .* did you mean "mutag"\?'):
        fetch("mutagg")
