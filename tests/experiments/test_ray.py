"""A real Ray cluster of two nodes on loopback, one of which is lost on the way."""

import http.server
import socket
import sys
import threading
import time

import pytest

from rgat.experiments.executors import open_executor
from rgat.experiments.protocol import open_protocol
from rgat.experiments.running import run_protocol

ASKED = {"data": "institute", "models": ["RGCN"], "trials": 6, "seeds": 6, "folds": 1, "max_epochs": 4, "patience": 2}

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, of sockets and processes it leaves to the end


@pytest.fixture
def ray():
    return pytest.importorskip("ray", reason="Ray is not installed: pip install 'rgat[ray]'")


@pytest.fixture
def cluster(ray, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RGAT_BACKEND", "torch")  # workers have nothing to compile
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    sizes = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **sizes})
    yield cluster, cluster.add_node(**sizes)
    ray.shutdown()
    cluster.shutdown()


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

    def watch(done, total):
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


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    return open_protocol(ASKED, tmp_path_factory.mktemp("ray")).folded


def refusal(folded, **options):
    started = time.monotonic()
    with pytest.raises(ValueError) as caught, open_executor("ray", folded, **options):
        pass
    assert time.monotonic() - started < 15
    return str(caught.value)


def test_an_address_where_no_ray_answers_is_one_sentence(ray, folded, free_port):
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
