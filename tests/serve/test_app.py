"""The application without a socket: answers equal `predict`, and wrong requests get one sentence each."""

import asyncio
import json
import math
import re
import threading
import time

import pytest
from helpers_institute import PREFIX
from httpx2 import ASGITransport, AsyncClient
from starlette.testclient import TestClient

import rgat
from rgat.predictor.added_nodes import AddedNodes
from rgat.serve import Limits, batching, make_app
from rgat.serve.names import NameIndex

PERSON = f"<{PREFIX}person/55>"
NEW = f"<{PREFIX}n> <{PREFIX}type> <{PREFIX}Person> ; <{PREFIX}researches> <{PREFIX}topic/glass> ."


@pytest.fixture(scope="module")
def nodes(open_model):
    with TestClient(make_app(open_model)) as client:
        yield client


@pytest.fixture(scope="module")
def molecules(molecule_model):
    with TestClient(make_app(molecule_model)) as client:
        yield client


def test_predictions_by_name_equal_predict(nodes, open_model):
    names = [name for name in open_model.data.node_names if "/person/" in name]
    answer = nodes.post("/predict", json={"nodes": names}).json()
    expected = open_model.predict(names)
    assert [column["name"] for column in answer["columns"]] == list(expected.columns)
    assert [row["node"] for row in answer["predictions"]] == names
    assert [row["class"] for row in answer["predictions"]] == expected.labels.tolist()
    assert [row["probabilities"] for row in answer["predictions"]] == expected.probabilities.tolist()
    assert [row["spreads"] for row in answer["predictions"]] == expected.spread.tolist()
    labels = [row["label"] for row in answer["predictions"]]
    assert labels.count(None) == 12
    without_brackets = nodes.post("/predict", json={"nodes": [names[0].strip("<>")]}).json()
    assert without_brackets["predictions"] == answer["predictions"][:1]


def test_new_nodes_equal_predict_with_a_file(nodes, open_model, tmp_path):
    (tmp_path / "new.ttl").write_text(NEW)
    expected = open_model.predict(rdf=tmp_path / "new.ttl")
    answer = nodes.post("/predict/new", json={"triples": NEW}).json()
    assert [row["node"] for row in answer["predictions"]] == list(expected.names)
    assert answer["predictions"][0]["probabilities"] == pytest.approx(expected.probabilities[0].tolist(), abs=1e-6)
    explained = nodes.post("/explain/new", json={"triples": NEW, "node": f"{PREFIX}n", "top": 2}).json()
    assert explained["explanation"]["probability"] == pytest.approx(answer["predictions"][0]["probability"], abs=1e-6)
    assert len(explained["explanation"]["reasons"]) == 2


def test_explanations_equal_explain(nodes, open_model):
    answer = nodes.post("/explain", json={"node": PERSON, "top": 3, "by": "effect"}).json()
    assert answer["explanation"] == json.loads(json.dumps(open_model.explain(PERSON, top=3, by="effect").as_json()))
    assert answer["sentences"][0].startswith('person/55 "</script>')
    assert answer["shown"][PERSON].startswith('person/55 "</script>')


def test_molecules_equal_predict_and_explain(molecules, molecule_model):
    smiles = ["CCO", "not a molecule", "c1ccccc1C(=O)NC"]
    answer = molecules.post("/predict", json={"smiles": smiles}).json()
    expected = molecule_model.predict(smiles)
    for row, probability in zip(answer["predictions"], expected.probabilities.tolist(), strict=True):
        is_invalid = math.isnan(probability[0])
        assert row["probabilities"] == ([None] * 6 if is_invalid else pytest.approx(probability, abs=1e-6))
        assert row["problem"] == ("cannot be read as SMILES" if is_invalid else None)
    explained = molecules.post("/explain", json={"smiles": "CC(=O)NC", "task": "amide"}).json()
    assert explained["explanation"]["task"] == "amide"
    assert explained["svg"]["effect"].startswith("<svg")
    assert len(explained["rows"]) == 9


def test_numbers_have_their_kind_and_unit(tmp_path):
    rows = "".join(f"{'C' * n}O,{100.5 * n},{n % 2}\n" for n in range(1, 25))
    (tmp_path / "table.csv").write_text("smiles,solubility (mg/L),toxic\n" + rows)
    kinds = {"solubility (mg/L)": "regression", "toxic": "binary"}
    data = rgat.data.from_smiles(tmp_path / "table.csv", tasks=list(kinds), task=kinds)
    model = rgat.fit(data, hidden_channels=4, max_epochs=1, comparison=False)
    with TestClient(make_app(model)) as client:
        answer = client.post("/predict", json={"smiles": ["CCO"]}).json()
        assert [(each["kind"], each["unit"]) for each in answer["columns"]] == [("regression", "mg/L"), ("binary", "")]
        expected = model.predict(["CCO"]).probabilities[0].tolist()
        assert answer["predictions"][0]["probabilities"] == pytest.approx(expected, rel=1e-6)
        explained = client.post("/explain", json={"smiles": "CCO"}).json()["explanation"]
        assert (explained["kind"], explained["unit"]) == ("regression", "mg/L")


def test_a_graph_in_a_store_is_served_too(tmp_path):
    (tmp_path / "graph.nt").write_text("".join(f"<x:{i}> <x:{i % 2}> <x:{i % 7}> .\n" for i in range(60)))
    (tmp_path / "labels.tsv").write_text("node\tclass\n" + "".join(f"x:{i}\t{i % 2}\n" for i in range(60)))
    rgat.data.convert(tmp_path / "graph.nt", tmp_path / "store")
    data = rgat.data.from_rdf(tmp_path / "store", tmp_path / "labels.tsv", in_memory=False)
    model = rgat.fit(data, max_epochs=1, comparison=False, fanouts=[5, 5], embedding_channels=4)
    with TestClient(make_app(model)) as client:
        rows = client.post("/predict", json={"nodes": ["x:8", "x:3"]}).json()["predictions"]
        assert [row["node"] for row in rows] == ["<x:8>", "<x:3>"]
        expected = model.predict(["x:8", "x:3"]).probabilities.tolist()
        assert [row["probabilities"] for row in rows] == [pytest.approx(row, abs=1e-6) for row in expected]
        assert client.get("/search?q=x:8").json()["nodes"] == [{"name": "<x:8>", "title": ""}]
        assert client.post("/explain", json={"node": "x:8", "top": 1}).status_code == 200
        error = client.post("/predict/new", json={"triples": NEW}).json()["error"]
        assert error == "the graph must be in memory to predict new nodes, but it is in a store"


def test_requests_that_arrive_while_a_pass_runs_are_answered_together(open_model):
    app = make_app(open_model)
    texts = [NEW.replace("/n>", f"/n{number}>") for number in range(12)]

    async def ask_all():
        async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
            answers = await asyncio.gather(*(client.post("/predict/new", json={"triples": text}) for text in texts))
            return [answer.json() for answer in answers], (await client.get("/metrics")).text

    answers, metrics = asyncio.run(ask_all())
    assert [answer["predictions"][0]["node"] for answer in answers] == [f"<{PREFIX}n{i}>" for i in range(12)]
    counted = {name: int(count) for name, count in re.findall(r'(\w+)\{job="new nodes"\} (\d+)', metrics)}
    assert counted["rgat_batch_items_total"] == 12
    assert counted["rgat_batches_total"] <= 3
    assert 'rgat_requests_total{path="/predict/new",status="200"} 12' in metrics
    assert 'rgat_request_seconds_bucket{path="/predict/new",le="+Inf"} 12' in metrics


WRONG = [
    ("/predict", {"nodes": ["nobody"]}, 422, 'nodes must be in the graph, got "nobody"; GET /search'),
    ("/predict", {"nodes": []}, 422, '"nodes" is invalid: List should have at least 1 item'),
    ("/predict", {"nodes": "x"}, 422, '"nodes" is invalid: Input should be a valid list, got "x"'),
    ("/predict", {"nodes": [PERSON], "file": "/etc/passwd"}, 422, '"file" is invalid: Extra inputs are not permitted'),
    ("/predict", {"nodes": [PERSON] * 6}, 413, "a request must have at most 5 nodes, got 6; send less"),
    ("/predict", {"nodes": ["a" * 5000]}, 422, '"nodes.0" is invalid: String should have at most 4096'),
    ("/predict", {"nodes": ["file:///etc/passwd"]}, 422, "nodes must be in the graph"),
    ("/predict", {"nodes": ["\ud800"]}, 422, "is invalid"),
    ("/explain", {"node": PERSON, "top": 0}, 422, '"top" is invalid'),
    ("/explain", {"node": PERSON, "by": "magic"}, 422, '"by" is invalid'),
    ("/explain", {"node": "nobody"}, 422, "nodes must be in the graph"),
    ("/predict/new", {"triples": "/etc/passwd"}, 422, "triples, line 1: not valid turtle"),
    ("/predict/new", {"triples": "# nothing"}, 422, "`triples` must have at least one triple, got none"),
    ("/predict/new", {"triples": NEW, "format": "rdfxml"}, 422, '"format" is invalid'),
    ("/predict/new", {"triples": NEW, "nodes": ["nobody"]}, 422, "nobody must be a node of the graph or of the added"),
    ("/predict/new", {"triples": "<x:a> <x:b> <x:c> ."}, 422, "the triples must describe new nodes of type"),
    ("/predict/new", {"triples": "<<" * 5000}, 422, "quoted triples must be nested at most 256 deep"),
    ("/predict/new", {"triples": "x" * 20_000}, 413, "the body of a request must have at most 20,000 bytes"),
    ("/predict", b"{", 422, "the body must be valid JSON: Expecting property name"),
    ("/predict", b"[" * 19_000, 400, "parsing the body"),
    ("/predict", b"9" * 10_000, 400, "parsing the body"),
    ("/predict", b'"\xff"', 400, "parsing the body"),
    ("/nothing", {}, 404, "this path is not known; GET /docs lists all"),
    ("/health", {}, 405, "this path does not take this method"),
    ("/../../etc/passwd", {}, 404, "this path is not known"),
]


@pytest.fixture(scope="module")
def strict(open_model):
    limits = Limits(num_bytes=20_000, num_items=5)
    with TestClient(make_app(open_model, limits), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(("path", "body", "status", "sentence"), WRONG)
def test_a_wrong_request_gets_one_sentence(strict, path, body, status, sentence):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = strict.post(path, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert sentence in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_form_of_another_site_is_refused(strict):
    answer = strict.post("/predict", content=json.dumps({"nodes": [PERSON]}), headers={"content-type": "text/plain"})
    assert answer.status_code == 422


def test_molecules_that_are_too_large_are_refused(molecules):
    answer = molecules.post("/predict", json={"smiles": ["C" * 2001]})
    assert (answer.status_code, "at most 2000 characters" in answer.json()["error"]) == (422, True)
    answer = molecules.post("/explain", json={"smiles": "C" * 300})
    assert answer.status_code == 422
    assert answer.json()["error"] == "a molecule to explain must have at most 250 atoms, got 300"
    answer = molecules.post("/explain", json={"smiles": "x"})
    assert answer.json()["error"] == '`smiles` must be a SMILES, got "x"'
    answer = molecules.post("/explain", json={"smiles": "CCO", "task": "none"})
    assert "`task` must be" in answer.json()["error"]
    for path, smiles in (("/predict", ["CCO", "CC\nCC"]), ("/explain", "CC\tCC")):
        answer = molecules.post(path, json={"smiles": smiles})
        assert answer.status_code == 422
        assert "a SMILES must be one line without tabs; send each one by itself" in answer.json()["error"]
    assert molecules.post("/predict", json={"smiles": ["CCO\n"]}).json()["predictions"][0]["problem"] is None


def test_a_model_without_features_says_what_new_nodes_need():
    with TestClient(make_app(rgat.fit("institute", max_epochs=1, comparison=False))) as client:
        assert client.get("/model").json()["new_nodes"] is False
        answer = client.post("/predict/new", json={"triples": NEW})
        assert (answer.status_code, "its input is one-hot" in answer.json()["error"]) == (422, True)


def test_only_named_hosts_are_answered(open_model):
    app = make_app(open_model, hosts=("127.0.0.1", "::1"))
    for host, status in (("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("evil.example", 421), ("", 421)):
        with TestClient(app) as client:
            assert client.get("/health", headers={"host": host}).status_code == status


def test_names_are_completed_by_name_and_title():
    names = ["<http://x/ada>", "<http://x/adam>", "<http://x/bob>", '"ada"', "<http://ada/c>"]
    index = NameIndex(names, {"<http://x/bob>": "Ada Lovelace\n<b>"})
    assert [name for name, _ in index.search("ADA", 9)] == [names[0], names[2], names[1], names[4]]
    assert index.search("lovelace", 1) == [("<http://x/bob>", "Ada Lovelace\n<b>")]
    assert index.search("  ", 9) == index.search("zzz", 9) == []


def test_pages_and_answers_tell_browsers_to_load_nothing(nodes):
    for path in ("/", "/docs", "/health", "/nothing"):
        headers = nodes.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
    page = nodes.get("/")
    assert "http" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert "unsafe" not in page.headers["content-security-policy"]
    text = nodes.get("/docs").text
    paths = nodes.get("/openapi.json").json()["paths"]
    assert len(paths) == 8
    assert all(f"<code>{path}</code>" in text for path in paths)


async def answered(app, receive, path="/predict/new", headers=()):
    """Answer one request without a client; return the status and the body."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "raw_path": path.encode(), "method": "POST", "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json"), *headers], "http_version": "1.1", "scheme": "http"}
    await app(scope | {"server": ("test", 80), "client": ("test", 1)}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def run_scope(app, receive, **options):
    """Return the status and the error of a request."""
    status, body = asyncio.run(answered(app, receive, **options))
    return status, body["error"]


async def stalled():
    await asyncio.Event().wait()


async def endless():
    return {"type": "http.request", "body": b"x" * 1000, "more_body": True}


async def complete():
    return {"type": "http.request", "body": json.dumps({"triples": NEW}).encode(), "more_body": False}


def test_a_request_that_stalls_or_never_ends_is_refused(open_model):
    app = make_app(open_model, Limits(num_bytes=5000, seconds=1))
    assert run_scope(app, stalled) == (408, "a request must arrive within 1 seconds; send it faster")
    assert run_scope(app, endless)[0] == 413
    assert run_scope(app, stalled, headers=[(b"content-length", b"5001")])[0] == 413


def test_an_answer_that_takes_too_long_is_not_waited_for(open_model, monkeypatch):
    monkeypatch.setattr(AddedNodes, "predict", lambda self, requests: time.sleep(1.5))
    app = make_app(open_model, Limits(seconds=1))
    status, error = run_scope(app, complete)
    assert (status, "an answer must take at most 1 seconds" in error) == (504, True)


def test_more_requests_than_the_limit_are_refused_but_health_is_answered(open_model, monkeypatch):
    predict, release = AddedNodes.predict, threading.Event()

    def wait(self, requests):
        release.wait(20)
        return predict(self, requests)

    monkeypatch.setattr(AddedNodes, "predict", wait)
    app = make_app(open_model, Limits(num_requests=2))

    async def ask_all():
        async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
            tasks = [asyncio.create_task(client.post("/predict/new", json={"triples": NEW})) for _ in range(4)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            health = await client.get("/health")
            release.set()
            return await asyncio.gather(*tasks), health

    answers, health = asyncio.run(ask_all())
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert answers[2].json()["error"] == "at most 2 requests are answered at a time; try again in a second"
    assert answers[2].headers["retry-after"] == "1"
    assert health.status_code == 200


def test_what_callers_who_have_gone_asked_for_is_not_computed(open_model, monkeypatch):
    """The first caller keeps the model busy; of two that wait, the second goes away."""
    predict, release, seen = AddedNodes.predict, threading.Event(), []

    def wait(self, requests):
        seen.append(len(requests))
        release.wait(20)
        return predict(self, requests)

    monkeypatch.setattr(AddedNodes, "predict", wait)
    monkeypatch.setattr(batching, "WAITED", 0)
    app = make_app(open_model)

    async def ask(stays):
        messages = [{"type": "http.request", "body": json.dumps({"triples": NEW}).encode(), "more_body": False}]
        messages += [] if stays else [{"type": "http.disconnect"}]

        async def receive():
            return messages.pop(0) if messages else await asyncio.Event().wait()

        return await answered(app, receive)

    async def ask_all():
        first = asyncio.create_task(ask(stays=True))
        while not seen:
            await asyncio.sleep(0.01)
        others = [asyncio.create_task(ask(stays)) for stays in (False, True)]
        await asyncio.sleep(0.1)
        release.set()
        return await asyncio.gather(first, *others)

    assert [status for status, _ in asyncio.run(ask_all())] == [200, 499, 200]
    assert seen == [1, 1]


def test_a_request_that_fails_does_not_fail_those_of_its_batch(open_model, monkeypatch):
    predict, sizes = AddedNodes.predict, []

    def fail(self, requests):
        sizes.append(len(requests))
        if any("bad" in name for request in requests for name in request.names):
            raise MemoryError
        return predict(self, requests)

    monkeypatch.setattr(AddedNodes, "predict", fail)
    texts = [NEW, NEW.replace(f"{PREFIX}n>", f"{PREFIX}bad>"), NEW, NEW]

    async def ask_all():
        transport = ASGITransport(make_app(open_model), raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="http://test") as client:
            tasks = [asyncio.create_task(client.post("/predict/new", json={"triples": text})) for text in texts]
            return await asyncio.gather(*tasks)

    assert [answer.status_code for answer in asyncio.run(ask_all())] == [200, 500, 200, 200]
    assert max(sizes) > 1


def test_a_failure_of_the_model_is_one_sentence_without_details(open_model, monkeypatch):
    monkeypatch.setattr(AddedNodes, "predict", lambda self, requests: 1 / 0)
    with TestClient(make_app(open_model), raise_server_exceptions=False) as client:
        answer = client.post("/predict/new", json={"triples": NEW})
        assert (answer.status_code, answer.json()) == (500, {"error": "the service failed to answer; its log says why"})
        assert client.get("/health").json() == {"status": "ok"}


def test_limits_must_be_counts():
    with pytest.raises(ValueError, match="`num_items` must be an integer of at least 1, got 0"):
        Limits(num_items=0)
