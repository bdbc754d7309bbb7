"""Measure `rgat serve`: throughput and latency, malformed requests, and a kill under load.

    OMP_NUM_THREADS=1 python benchmarks/service.py
    OMP_NUM_THREADS=1 python benchmarks/service.py --requests 200 --malformed 1000 --explanations 20

Trains models of the built-in data sets `institute` and `molecules`, starts the server on a free port of the loopback
address, and compares every answer with `predict` or `explain`. Throughput is compared with that of one client that
sends one request after the other; so is the server's processor time per request, which depends less on what else the
machine does. Clients are threads of this process with one connection each.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import rgat
from rgat.data import from_rdf
from rgat.data.synthetic.institute import institute_triples

PREFIX = "http://institute.example/"
CLIENTS = 16
TOLERANCE = 1e-5  # of probabilities: sums of a batch may be in another order


class Question(NamedTuple):
    """A request, and a check of its answer; GET without a body."""

    path: str
    body: dict[str, Any] | None
    is_right: Callable[[dict[str, Any]], bool]


class Service:
    """A server process; ``--port`` 0 the first time, then the same port again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "rgat", "serve", str(self.folder), "--port", str(self.port)]
        command += ["--max-seconds", "600"]  # 16 explanations at once take longer than the default on a busy machine
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = urlsplit(line.split(" open ")[1].split()[0]).port
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if ask(connect(self.port), "GET", "/health")[0] == 200:
                    return
            time.sleep(0.05)

    def memory(self) -> float:
        """Return the resident memory in megabytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1000

    def cpu(self) -> float:
        """Return the seconds of processor time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Service]:
    service = Service(folder)
    try:
        yield service
    finally:
        service.stop()


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=600)


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


class Outcome(NamedTuple):
    """What clients saw."""

    seconds: float
    latencies: list[float]
    wrong: int
    retries: int


def send(port: int, questions: Sequence[Question], clients: int, retry: bool = False) -> Outcome:
    """Send all questions from so many clients at once; with ``retry``, ask again where no answer came."""
    waiting: queue.SimpleQueue[Question] = queue.SimpleQueue()
    bodies = {id(question): question.body and json.dumps(question.body).encode() for question in questions}
    for question in questions:
        waiting.put(question)
    answers: list[tuple[Question, bytes, int, float]] = []
    retries = [0]

    def work() -> None:
        connection = connect(port)
        while True:
            try:
                question = waiting.get_nowait()
            except queue.Empty:
                return
            start = time.perf_counter()
            while True:
                try:
                    body = bodies[id(question)]
                    status, content = ask(connection, "POST" if body else "GET", question.path, body)
                    break
                except (OSError, http.client.HTTPException):
                    if not retry:
                        raise
                    retries[0] += 1
                    connection.close()
                    time.sleep(0.05)
            answers.append((question, content, status, time.perf_counter() - start))

    threads = [threading.Thread(target=work) for _ in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    right = sum(status == 200 and question.is_right(json.loads(content)) for question, content, status, _ in answers)
    return Outcome(seconds, [latency for *_, latency in answers], len(questions) - right, retries[0])


def close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) <= TOLERANCE for a, b in zip(one, other, strict=True))


def by_name(model: rgat.predictor.NodePredictor, count: int) -> list[Question]:
    names = [model.data.node_names[i % len(model.data.node_names)] for i in range(count)]
    predictions = model.predict(names)

    def question(name: str, label: str, probabilities: list[float]) -> Question:
        def is_right(answer: dict[str, Any]) -> bool:
            (row,) = answer["predictions"]
            return row["node"] == name and row["class"] == label and close(row["probabilities"], probabilities)

        return Question("/predict", {"nodes": [name]}, is_right)

    rows = zip(names, predictions.labels.tolist(), predictions.probabilities.tolist(), strict=True)
    return [question(*row) for row in rows]


def nothing(count: int) -> list[Question]:
    """Return questions that need no model: what HTTP itself costs, below which no other request can be."""
    return [Question("/health", None, lambda answer: answer == {"status": "ok"}) for _ in range(count)]


def new_nodes(model: rgat.predictor.NodePredictor, count: int, folder: Path) -> list[Question]:
    """Return questions about one new person each, with 8 triples; `predict` reads the same text from a file."""
    draw = random.Random(0)
    topics, projects = (
        [name for name in model.data.node_names if f"{PREFIX}{kind}/" in name] for kind in ("topic", "project")
    )
    questions = []
    for number in range(count):
        person = f"<{PREFIX}person/new{number}>"
        ends = [("type", f"<{PREFIX}Person>"), ("name", f'"Person {number}"')]
        ends += [("researches", topic) for topic in draw.sample(topics, 3)]
        ends += [("worksOn", project) for project in draw.sample(projects, 2)]
        text = "".join(f"{person} <{PREFIX}{relation}> {end} .\n" for relation, end in ends)
        path = folder / "new.nt"
        path.write_text(text)
        (probabilities,) = model.predict(rdf=path).probabilities.tolist()

        def is_right(answer: dict[str, Any], person: str = person, probabilities: list[float] = probabilities) -> bool:
            (row,) = answer["predictions"]
            return row["node"] == person and close(row["probabilities"], probabilities)

        questions.append(Question("/predict/new", {"triples": text, "format": "ntriples"}, is_right))
    return questions


def explanations(model: rgat.predictor.NodePredictor, count: int) -> list[Question]:
    people = [name for name in model.data.node_names if f"{PREFIX}person/" in name][:count]
    questions = []
    for person in people:
        expected = json.loads(json.dumps(model.explain(person, top=5).as_json()))

        def is_right(answer: dict[str, Any], expected: dict[str, Any] = expected) -> bool:
            found = answer["explanation"]
            effects = [[reason["effect"] for reason in each["reasons"]] for each in (found, expected)]
            return found["node"] == expected["node"] and close(*effects)

        questions.append(Question("/explain", {"node": person, "top": 5}, is_right))
    return questions


def molecules(model: rgat.predictor.MoleculePredictor, count: int) -> list[Question]:
    draw = random.Random(0)
    parts = ["C", "N", "O", "CC", "C(=O)", "c1ccccc1", "C(=O)N", "C1CCNCC1", "S", "C(F)"]
    texts = ["C" + "".join(draw.choices(parts, k=draw.randint(3, 9))) for _ in range(2 * count)]
    expected = model.predict(texts).probabilities.tolist()

    def question(text: str, probabilities: list[float]) -> Question:
        return Question(
            "/predict",
            {"smiles": [text]},
            lambda answer: close(answer["predictions"][0]["probabilities"], probabilities),
        )

    valid = [pair for pair in zip(texts, expected, strict=True) if not math.isnan(pair[1][0])]
    return [question(*pair) for pair in valid[:count]]


HEADER = (
    "request", "number", "wrong", "p50, ms", "p99, ms", "one at a time, 1/s", "16 clients, 1/s", "ratio",
    "server's CPU, ms: alone", "16 clients", "ratio",
)  # fmt: skip


def measure(name: str, service: Service, questions: Sequence[Question], count: int) -> None:
    """Send ``count`` questions from all clients; before, others alone, so that no answer can be known already."""
    first, second = len(questions) - count - alone_of(count), len(questions) - count
    send(service.port, questions[:first], 1)  # warm up
    rates, cpu, wrong = [], [], 0
    for part, clients in ((questions[first:second], 1), (questions[second:], CLIENTS)):
        before = service.cpu()
        outcome = send(service.port, part, clients)
        rates.append(len(part) / outcome.seconds)
        cpu.append(1e3 * (service.cpu() - before) / len(part))
        wrong += outcome.wrong
    cuts = statistics.quantiles(outcome.latencies, n=100)
    cells = (name, f"{count:,}", wrong, f"{1e3 * cuts[49]:.1f}", f"{1e3 * cuts[98]:.1f}")
    cells += (f"{rates[0]:,.1f}", f"{rates[1]:,.1f}", f"{rates[1] / rates[0]:.1f}")
    cells += (f"{cpu[0]:.1f}", f"{cpu[1]:.1f}", f"{cpu[0] / max(cpu[1], 1e-9):.1f}")
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def alone_of(count: int) -> int:
    return max(10, count // 4)


def with_others(count: int) -> int:
    """Return how many questions are needed to measure so many from all clients."""
    return count + alone_of(count) + 5


def malformed(count: int) -> list[tuple[str, str, bytes]]:
    """Return method, path and body of requests that are all wrong."""
    draw = random.Random(0)
    person = f"<{PREFIX}person/1>"
    kinds: list[Callable[[], tuple[str, str, bytes]]] = [
        lambda: ("POST", "/predict", draw.randbytes(draw.randint(1, 3000))),
        lambda: ("POST", "/predict", b"[" * draw.randint(1, 50_000)),
        lambda: ("POST", "/predict", json.dumps({"nodes": [person]}).encode()[: draw.randint(1, 40)]),
        lambda: ("POST", "/predict", json.dumps({"nodes": ["x" * draw.randint(1, 20_000)]}).encode()),
        lambda: ("POST", "/predict", json.dumps({"nodes": [person], "path": "/etc/passwd"}).encode()),
        lambda: ("POST", "/predict", json.dumps({"nodes": [person] * 1500}).encode()),
        lambda: ("POST", "/predict", b"x" * (1 << 20) + b"x"),
        lambda: (
            "POST",
            "/explain",
            json.dumps({"node": person, "top": draw.choice([0, -1, 10**9, "x", None])}).encode(),
        ),
        lambda: ("POST", "/explain", json.dumps({"node": f"file:///etc/{draw.random()}"}).encode()),
        lambda: ("POST", "/predict/new", json.dumps({"triples": "<<" * draw.randint(1, 5000)}).encode()),
        lambda: ("POST", "/predict/new", json.dumps({"triples": "http://x.example/a.ttl"}).encode()),
        lambda: ("POST", "/predict/new", json.dumps({"triples": f"<x:{draw.random()}> <x:b> <x:c> ."}).encode()),
        lambda: ("POST", "/predict/new", json.dumps({"triples": "\ud800"}).encode()),
        lambda: ("GET", f"/{draw.getrandbits(64):x}/../../etc/passwd", b""),
        lambda: ("DELETE", "/predict", b""),
        lambda: ("GET", f"/search?q={'a' * draw.randint(201, 5000)}", b""),
    ]
    return [draw.choice(kinds)() for _ in range(count)]


def attack(service: Service, count: int) -> None:
    requests = malformed(count)
    statuses: Counter[int] = Counter()

    def work(own: Sequence[tuple[str, str, bytes]]) -> None:
        connection = connect(service.port)
        for method, path, body in own:
            try:
                status, _ = ask(connection, method, path, body or None)
            except (BrokenPipeError, ConnectionResetError):  # the answer came before all of the body was sent
                connection.close()
                status = 0
            statuses[status] += 1

    def run(part: Sequence[tuple[str, str, bytes]]) -> float:
        threads = [threading.Thread(target=work, args=(part[i::CLIENTS],)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return service.memory()

    tenth = count // 10
    memory = [run(requests[start : start + tenth]) for start in range(0, count, tenth)]
    counts = ", ".join(f"{status}: {number:,}" for status, number in sorted(statuses.items()))
    others = sum(number for status, number in statuses.items() if not 400 <= status < 500)
    print(f"\n{sum(statuses.values()):,} malformed requests: {counts}; not 4xx: {others}")
    print("memory after each tenth, MB: " + ", ".join(f"{value:.0f}" for value in memory))


def kill(service: Service, questions: Sequence[Question], number: int) -> None:
    def end() -> None:
        time.sleep(1.5)
        codes.append(service.stop(number))
        service.start()

    codes: list[int] = []
    killer = threading.Thread(target=end)
    killer.start()
    repeated = list(questions)
    outcome = send(service.port, repeated, CLIENTS, retry=True)
    while killer.is_alive():  # all answered before the kill: go on until it is over
        more = send(service.port, questions, CLIENTS, retry=True)
        repeated += questions
        outcome = Outcome(0, [], outcome.wrong + more.wrong, outcome.retries + more.retries)
    killer.join()
    name = signal.Signals(number).name
    print(
        f"{name} and restart under load: {len(repeated):,} requests, {outcome.retries:,} sent again, "
        f"{outcome.wrong} wrong, exit code {codes[0]}",
        flush=True,
    )


def train(folder: Path, ensemble: int, epochs: int) -> tuple[Any, Any]:
    triples, groups = institute_triples(0)
    (folder / "institute.nt").write_text("".join(f"{' '.join(triple)} .\n" for triple in triples))
    rows = [f"{person.strip('<>')}\t{group}\n" for person, group in groups.items()]
    (folder / "labels.tsv").write_text("person\tgroup\n" + "".join(rows))
    features = ("types", "degrees", "literals")
    data = from_rdf(folder / "institute.nt", folder / "labels.tsv", features=features, shares=(0.75, 0.0))
    options = {"ensemble": ensemble, "comparison": False, "max_epochs": epochs}
    institute, drugs = rgat.fit(data, **options), rgat.fit("molecules", **options)
    institute.save(folder / "institute")
    drugs.save(folder / "molecules")
    return rgat.load(folder / "institute"), rgat.load(folder / "molecules")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="requests of each kind (default: %(default)s)")
    parser.add_argument("--explanations", type=int, default=80, help="explanations (default: %(default)s)")
    parser.add_argument("--malformed", type=int, default=10_000, help="malformed requests (default: %(default)s)")
    parser.add_argument("--ensemble", type=int, default=5, help="members of each model (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of training (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        institute, drugs = train(folder, arguments.ensemble, arguments.epochs)
        number, few = arguments.requests, arguments.explanations
        new = new_nodes(institute, with_others(number), folder)
        print(f"{arguments.ensemble} members per model; {CLIENTS} clients\n")
        print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}")
        with served(folder / "institute") as service:
            measure("health, without the model", service, nothing(with_others(number)), number)
            measure("institute: new node, 7 triples", service, new, number)
            measure("institute: node by name", service, by_name(institute, with_others(number)), number)
            measure("institute: explanation", service, explanations(institute, with_others(few)), few)
        with served(folder / "molecules") as service:
            measure("molecules: SMILES", service, molecules(drugs, with_others(number)), number)
        with served(folder / "institute") as service:
            attack(service, arguments.malformed)
            for signal_number in (signal.SIGKILL, signal.SIGTERM):
                kill(service, new, signal_number)


if __name__ == "__main__":
    main()
