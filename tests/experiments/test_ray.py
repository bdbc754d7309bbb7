"""A real Ray cluster of two nodes on loopback, one of which is lost on the way."""

import contextlib
import functools
import http.server
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from rgat.data import load
from rgat.experiments.executors import open_executor
from rgat.experiments.folds import fold_data
from rgat.experiments.protocol import open_protocol
from rgat.experiments.running import run_protocol
from rgat.experiments.units import make_unit

ASKED = {"data": "institute", "models": ["RGCN"], "trials": 6, "seeds": 6, "folds": 1, "max_epochs": 4, "patience": 2}

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of sockets and processes it leaves to the end
    pytest.mark.xdist_group("ray"),  # one cluster after the other, for the sake of memory
]


@pytest.fixture(scope="module")
def ray():
    return pytest.importorskip("ray", reason="Ray is not installed: pip install 'rgat[ray]'")


SIZES = {"num_cpus": 1, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def head(ray):
    """A cluster of one node."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RGAT_BACKEND", "torch")  # workers have nothing to compile
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        noticed_soon = {"health_check_period_ms": 1000}  # a node is lost after five checks
        options = {"include_dashboard": False, "_system_config": noticed_soon, **SIZES}
        cluster = Cluster(initialize_head=True, head_node_args=options)
        yield cluster
        cluster.shutdown()


@pytest.fixture
def cluster(ray, head):
    """The cluster and its second node, which a test may remove."""
    node = head.add_node(**SIZES)
    yield head, node
    ray.shutdown()
    if node in head.list_all_nodes():
        head.remove_node(node)


def wait_until_both_work(ray):
    """All processors of both nodes are taken."""
    for _ in range(300):
        if ray.available_resources().get("CPU", 0) == 0:
            return
        time.sleep(0.05)
    raise AssertionError("one node had nothing to do")


def test_a_lost_node_costs_nothing_but_time(ray, cluster, tmp_path):
    cluster, node = cluster
    alive = []

    def watch(done, total, new):
        if done == 2 and not alive:
            wait_until_both_work(ray)
            alive.append(sum(entry["Alive"] for entry in ray.nodes()))
            cluster.remove_node(node, allow_graceful=False)
        elif done == total:  # the cluster may notice later than the work is done
            until = time.monotonic() + 60
            while sum(entry["Alive"] for entry in ray.nodes()) > 1 and time.monotonic() < until:
                time.sleep(0.2)
            alive.append(sum(entry["Alive"] for entry in ray.nodes()))

    many = run_protocol(
        open_protocol(ASKED, tmp_path / "ray"), executor="ray", address=cluster.address, on_progress=watch
    )
    assert alive == [2, 1]
    one = run_protocol(open_protocol(ASKED, tmp_path / "local"))
    assert len(many) == len(one) == 12
    for a, b in zip(many, one, strict=True):
        assert a | {"seconds": 0} == b | {"seconds": 0}


def kill_a_training_worker(cluster, killed):
    """Kill the first process of the cluster that trains together with others."""
    raylets = {node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()}
    until = time.monotonic() + 120
    while not killed and time.monotonic() < until:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # a process that ends meanwhile
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in raylets and (path / "cmdline").read_bytes().startswith(b"ray::Worker.run"):
                    os.kill(int(path.name), signal.SIGKILL)
                    killed.append(path.name)
                    return
        time.sleep(0.02)


def test_two_workers_train_each_model_together_and_a_lost_one_costs_nothing_but_time(ray, cluster, tmp_path):
    asked, killed = ASKED | {"trials": 1, "seeds": 2}, []
    threading.Thread(target=kill_a_training_worker, args=(cluster[0], killed)).start()
    protocol = open_protocol(asked, tmp_path / "ray")
    many = run_protocol(protocol, executor="ray", address=cluster[0].address, processes_per_run=2)
    one = run_protocol(open_protocol(asked, tmp_path / "local"))
    assert len(killed) == 1
    assert len(many) == len(one) == 3
    for a, b in zip(many, one, strict=True):
        assert a["status"] == b["status"] == "done"
        curves = [record["curve"] if record["kind"] == "run" else record["folds"][0]["curve"] for record in (a, b)]
        assert curves[0]["train_loss"] == pytest.approx(curves[1]["train_loss"], rel=1e-3)  # of four digits


def test_users_mistakes_with_processes_per_run_are_one_sentence(ray, cluster, folded):
    with pytest.raises(ValueError, match='must be 1 with the executor "local"; or ask for "ray"'):
        open_executor("local", folded, processes_per_run=2).__enter__()
    graphs = fold_data(load("molecules"))
    with pytest.raises(ValueError, match="must be 1 for graphs"):
        open_executor("ray", graphs, processes_per_run=2).__enter__()
    with (
        open_executor("ray", folded, address=cluster[0].address, processes_per_run=3) as execute,
        pytest.raises(ValueError, match="must be at most the number of CPUs in the Ray cluster, 2, got 3"),
    ):
        list(execute([make_unit("trial", "institute", "RGCN", {})]))


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    return open_protocol(ASKED, tmp_path_factory.mktemp("ray")).folded


def refusal(folded, **options):
    started = time.monotonic()
    with pytest.raises(ValueError) as caught, open_executor("ray", folded, **options):
        pass
    assert time.monotonic() - started < 15
    return str(caught.value)


def test_an_address_where_no_ray_answers_is_one_sentence(ray, folded, free_port, monkeypatch):
    # "auto" is any cluster of this machine, such as one of another test, whose processes may still be ending.
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(set))
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda _: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    message = refusal(folded, address=f"127.0.0.1:{free_port}")
    assert "must be that of a running Ray cluster" in message
    assert "start one with `ray start --head --port 6379`" in message
    assert "none answers" in refusal(folded, address="auto")
    assert 'such as "10.0.0.1:6379", got "head-node"' in refusal(folded, address="head-node")
    assert "the cluster knows how many it has" in refusal(folded, address="127.0.0.1:1", workers=2)


def test_something_else_at_the_address_is_one_sentence(ray, folded):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.RequestHandlerClass.log_message = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert "something else listens there" in refusal(folded, address=f"127.0.0.1:{server.server_port}")
        server.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "timed out" in refusal(folded, address=f"ray://127.0.0.1:{silent.getsockname()[1]}")


def test_without_ray_one_sentence_says_how_to_get_it(folded, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="needs Ray; install it with"), open_executor("ray", folded):
        pass
