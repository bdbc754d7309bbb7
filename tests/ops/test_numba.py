"""Test the Numba backend on sizes, degrees, threads and forks that small random graphs do not cover."""

import itertools
import multiprocessing
import subprocess
import sys
import threading

import numba
import numpy as np
import pytest
import torch
from filelock import FileLock
from helpers import assert_close, assert_matches_reference, hub_graph, pack_half, random_graph, unpack
from torch.utils._python_dispatch import TorchDispatchMode

from rgat import RelationalGraph, ops
from rgat.nn import RGATConv, RGCNConv
from rgat.ops import dispatch
from rgat.ops.numba import attention_loops, blas, launch, projection, tile_loops
from rgat.ops.numba import compile as compiling


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("size", [1, 3, 8, 17, 63, 100])
@pytest.mark.parametrize("plan", ["project", "aggregate"])
def test_awkward_sizes(size, plan):
    graph = random_graph(40, 300, 5)
    for F, D in ((size, 16), (16, size), (size, size)):
        conv = RGATConv(F, D, 5, heads=3, scope=["within", "across", "within"], score="multiplicative")
        for dtype in (torch.float64, torch.float32):
            assert_matches_reference(conv, torch.randn(40, F), graph, dtype, backend="numba", plan=plan)


@pytest.mark.parametrize("as_target", [True, False])
@pytest.mark.parametrize("scope", ["within", "across"])
def test_a_row_of_degree_200000(scope, as_target, two_threads):
    conv = RGATConv(6, 4, 3, heads=2, scope=scope)
    for dtype in (torch.float64, torch.float32):
        assert_matches_reference(conv, torch.randn(50, 6), hub_graph(200_000, as_target), dtype, backend="numba")


@pytest.mark.parametrize("as_target", [True, False])
@pytest.mark.parametrize("channels", [8, 16])
def test_long_rows_of_heads_that_are_one_vector(channels, as_target, two_threads):
    conv = RGATConv(6, channels, 3, heads=2, scope=["within", "across"], score="multiplicative")
    for dtype in (torch.float64, torch.float32):
        assert_matches_reference(conv, torch.randn(50, 6), hub_graph(2_000, as_target), dtype, backend="numba")


def test_no_edges_no_relations_no_nodes():
    for N, R in ((5, 3), (5, 0), (0, 3)):
        graph = RelationalGraph(
            torch.empty(2, 0, dtype=torch.long), torch.empty(0, dtype=torch.long), num_nodes=N, num_relations=R
        )
        for conv in (RGATConv(4, 3, R, heads=2), RGCNConv(4, 3, R), RGATConv(4, 3, R, num_bases=2)):
            x = torch.randn(N, 4, requires_grad=True)
            with ops.backend("numba"):
                conv(x, graph).sum().backward()
            assert not x.grad.any()
            assert all(not p.grad.any() for name, p in conv.named_parameters() if name != "bias")


def test_inputs_need_not_be_contiguous():
    graph = random_graph()
    conv = RGATConv(5, 3, 4, heads=2)
    x = torch.randn(5, 9).t()
    assert not x.is_contiguous()
    with ops.backend("numba"):
        assert torch.equal(conv(x, graph), conv(x.contiguous(), graph))
    assert_matches_reference(conv, x, graph, torch.float32, backend="numba")


@pytest.mark.parametrize("score", ["additive", "multiplicative"])
@pytest.mark.parametrize("scope", ["within", "across"])
def test_logits_of_ten_thousand_give_no_nan(scope, score):
    graph = random_graph(20, 200, 4)
    conv = RGATConv(5, 3, 4, heads=2, scope=scope, score=score)
    with torch.no_grad():
        conv.attention_kernel.weight.mul_(1e4 if score == "additive" else 1e2)
    x = torch.randn(20, 5, requires_grad=True)
    with ops.backend("numba"):
        out, (_, attention) = conv(x, graph, return_attention_weights=True)
    out.sum().backward()
    gradients = [x.grad, *(p.grad for p in conv.parameters())]
    assert all(bool(t.isfinite().all()) for t in (out, attention, *gradients))
    with ops.backend("reference"):
        assert_close(attention, conv(x, graph, return_attention_weights=True)[1][1], 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", ["additive", "multiplicative"])
@pytest.mark.parametrize("scope", ["within", "across"])
def test_a_nan_logit_makes_the_attention_of_its_group_nan_on_every_backend(scope, score, dtype):
    # Target 0 has groups of three, two and one edges; targets 1 and 2 have finite logits; the last edge is alone.
    edge_index = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4, 5], [0, 0, 0, 0, 0, 0, 1, 1, 2]])
    edge_type = torch.tensor([0, 0, 0, 1, 1, 2, 0, 0, 1])
    for bad, query_is_nan in ((0, True), (4, False), (5, False)):  # the NaN is in the target or in a source
        graph = RelationalGraph(edge_index, edge_type, num_nodes=6, num_relations=3, validate=False)
        conv = RGATConv(3, 2, 3, heads=2, scope=scope, score=score).to(dtype)
        x = torch.randn(6, 3, dtype=dtype)
        x[bad, 1] = torch.nan
        is_bad = (edge_index[1] if query_is_nan else edge_index[0]) == bad
        group = edge_index[1] * 3 + edge_type if scope == "within" else edge_index[1]
        expected = torch.isin(group, group[is_bad])
        for backend in ("reference", "torch", "numba"):
            with ops.backend(backend), torch.no_grad():
                _, (_, attention) = conv(x, graph, return_attention_weights=True)
            assert attention.isnan().tolist() == expected[:, None].expand(-1, 2).tolist(), (backend, bad)


def packed_gradients(conv, x, graph, backend, **call):
    """Return all gradients of a step whose saved floating-point tensors are cast to bfloat16."""
    conv.zero_grad()
    with ops.backend(backend), torch.autograd.graph.saved_tensors_hooks(pack_half, unpack):
        out = conv(x, graph, **call)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(2)))
    return {name: parameter.grad.clone() for name, parameter in conv.named_parameters()}


@pytest.mark.parametrize("backend", ["reference", "torch", "numba"])
def test_a_logit_that_overflows_makes_the_attention_of_its_edge_nan(backend):
    graph = RelationalGraph(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), num_nodes=3, num_relations=2)
    conv = RGATConv(2, 2, 2, score="multiplicative")
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.fill_(1e10)
    with ops.backend(backend), torch.no_grad():
        _, (_, attention) = conv(torch.ones(3, 2), graph, return_attention_weights=True)
    assert attention.isnan().all()


@pytest.mark.parametrize("plan", ["project", "aggregate", None])
def test_saved_tensors_in_half_precision_cost_no_more_than_their_rounding(plan):
    graph = random_graph(300, 6000, 5)
    conv = RGATConv(8, 6, 5, heads=3, scope=["within", "across", "within"])
    x = torch.randn(300, 8)
    if plan is None:  # one-hot inputs
        conv, x = RGATConv(300, 6, 5, heads=3, scope=["within", "across", "within"], graph=graph), None
    with ops.backend("reference"):
        out = conv(x, graph)
        out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(2)))
    expected = {name: parameter.grad.clone() for name, parameter in conv.named_parameters()}
    for backend in ("torch", "numba"):
        call = {} if plan is None or backend == "torch" else {"plan": conv.plan(graph, plan)}
        actual = packed_gradients(conv, x, graph, backend, **call)
        for name, gradient in actual.items():
            assert_close(gradient, expected[name], 0.02, f"gradient of {name} on {backend}")


def step(conv, x, graph):
    x = x.detach().clone().requires_grad_()
    with ops.backend("numba"):
        out = conv(x, graph)
        out.backward(torch.ones_like(out))
    return [out.detach(), x.grad] + [p.grad.clone() for p in conv.parameters()]


def big_case(**options):
    graph = random_graph(3000, 40_000, 9).prepare()
    conv = RGATConv(32, 16, 9, heads=4, scope="across", **options)
    return conv, torch.randn(3000, 32), graph


@pytest.mark.parametrize("plan", ["project", "aggregate"])
def test_threads_change_no_bit_of_the_loops(plan, two_threads):
    conv, x, graph = big_case(edge_dropout=0.3)
    conv.eval()
    chosen = conv.plan(graph, plan)
    outs = []
    for count in (2, 2, 1):
        torch.set_num_threads(count)
        with ops.backend("numba"):
            outs.append(conv(x, graph, plan=chosen).detach())
    assert torch.equal(outs[0], outs[1])
    assert_close(outs[2], outs[0], 1e-6)  # BLAS may use another order of summation on one thread


def test_gradients_of_one_and_two_threads_differ_by_rounding_only(two_threads):
    conv, x, graph = big_case()
    actual = step(conv, x, graph)
    conv.zero_grad()
    torch.set_num_threads(1)
    for alone, together in zip(step(conv, x, graph), actual, strict=True):
        assert_close(together, alone, 2e-6)


def test_repeated_steps_give_the_same_bits(two_threads):
    conv, x, graph = big_case()
    first = step(conv, x, graph)
    conv.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(first, step(conv, x, graph), strict=True))


@pytest.mark.parametrize("score", ["additive", "multiplicative"])
@pytest.mark.parametrize("plan", ["project", "aggregate"])
def test_gradients_on_many_threads_match_the_reference(plan, score, monkeypatch):
    monkeypatch.setattr(launch, "_num_threads", lambda: 9)
    rounds = []
    monkeypatch.setattr(projection, "ROUND", 1)  # the shortest possible rounds
    add_in_rounds = projection.NodeSums._add_in_rounds
    monkeypatch.setattr(
        projection.NodeSums, "_add_in_rounds", lambda *given: rounds.append(given) or add_in_rounds(*given)
    )
    graph = random_graph(300, 4000, 7, edge_dim=2)
    conv = RGATConv(12, 20, 7, heads=2, scope=["within", "across"], score=score, edge_dim=2)
    assert len(graph.structure.sources.node) > 300
    assert_matches_reference(conv, torch.randn(300, 12), graph, torch.float32, backend="numba", plan=plan)
    assert rounds


def test_four_python_threads_run_layers_at_once(two_threads):
    conv, x, graph = big_case()
    conv.requires_grad_(False)
    expected = step_without_parameters(conv, x, graph)
    results = [None] * 4

    def work(place):
        results[place] = [step_without_parameters(conv, x, graph) for _ in range(5)][-1]

    workers = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert all(torch.equal(a, b) for result in results for a, b in zip(result, expected, strict=True))


def step_without_parameters(conv, x, graph):
    x = x.detach().clone().requires_grad_()
    out = conv(x, graph)
    out.backward(torch.ones_like(out))
    return [out.detach(), x.grad]


def in_child(queue, conv, x, graph):
    assert launch.even(0, 1000, 1000) == [0, 1000]  # OpenMP's threads do not survive a fork
    with ops.backend("numba"):
        out = step_without_parameters(conv, x, graph)
    queue.put([t.numpy() for t in out])


def test_memory_does_not_grow_with_the_number_of_threads():
    code = (
        "import torch\n"
        "from rgat import RelationalGraph, ops\n"
        "from rgat.nn import RGATConv\n"
        "def status(name):\n"
        "    with open('/proc/self/status') as file:\n"
        "        return next(int(line.split()[1]) >> 10 for line in file if line.startswith(name))\n"
        "def growth(count):\n"
        "    torch.set_num_threads(count)\n"
        "    with open('/proc/self/clear_refs', 'w') as file:\n"
        "        file.write('5')\n"
        "    before = status('VmRSS')\n"
        "    conv(x, graph).sum().backward()\n"
        "    x.grad = None\n"
        "    return status('VmHWM') - before\n"
        "edges = torch.randint(40_000, (2, 60_000))\n"
        "graph = RelationalGraph(edges, torch.randint(3, (60_000,)), num_nodes=40_000, num_relations=3).prepare()\n"
        "conv, x = RGATConv(64, 4, 3), torch.randn(40_000, 64, requires_grad=True)\n"
        "with ops.backend('numba'):\n"
        "    growth(1)\n"
        "    print(x.nbytes >> 20, *map(growth, (1, 8, 64)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    size, *growth = map(int, done.stdout.split())
    assert size == 9
    assert max(growth) < growth[0] + 4 * size, growth


def test_layers_run_after_a_fork(two_threads):
    conv, x, graph = big_case()
    conv.requires_grad_(False)
    assert launch.even(0, 1000, 1000) == [0, 500, 1000]
    expected = step_without_parameters(conv, x, graph)  # starts the parent's threads
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(queue, conv, x, graph))
    child.start()
    actual = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert_close(torch.from_numpy(actual[0]), expected[0], 1e-6)
    assert_close(torch.from_numpy(actual[1]), expected[1], 1e-5)


def test_layers_run_where_processes_cannot_fork():
    code = (
        "import os, torch, numba\n"
        "del os.register_at_fork\n"
        "from rgat import RelationalGraph, ops\n"
        "from rgat.nn import RGCNConv\n"
        "graph = RelationalGraph(torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0]), num_nodes=2, num_relations=1)\n"
        "with ops.backend('numba'):\n"
        "    RGCNConv(2, 2, 1)(torch.randn(2, 2), graph).sum().backward()\n"
        "print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "ok", done.stderr


def test_plans_of_another_graph_or_call_are_refused():
    graph, x = random_graph(30, 200, 4), torch.randn(30, 6)
    conv = RGATConv(6, 4, 4, feature_dropout=0.5)
    with pytest.raises(ValueError, match="a plan must be made for a graph of 4 relations, got one for 1"):
        conv(x, graph, plan=ops.Plan("per relation", (True,)))
    plan = conv.eval().plan(graph, "aggregate")
    conv(x, graph, plan=plan)
    with pytest.raises(ValueError, match='the plan "aggregate" must not be used with feature dropout'):
        conv.train()(x, graph, plan=plan)
    with pytest.raises(ValueError, match="at least one column"):
        RGATConv(0, 4, 4)(torch.randn(30, 0), graph)


def test_exponentials_are_accurate_to_the_last_bits():
    numbers = -np.random.default_rng(0).random(100_000).astype(np.float32) * 86
    numbers[:3] = 0, -1e4, -np.inf
    expected = np.exp(numbers.astype(np.float64))
    attention_loops.exponentials_of(numbers)
    assert numbers[0] == 1
    assert numbers[1] == numbers[2] == 0
    assert np.max(np.abs(numbers - expected) / np.maximum(expected, 1e-37)) < 3e-7


def test_an_error_in_any_thread_reaches_the_caller(two_threads):
    @numba.njit(nogil=True)
    def fails(lo, hi, numbers):
        if lo:
            raise RuntimeError("in the second part")
        numbers[:] = 1

    numbers = np.zeros(3)
    with pytest.raises(RuntimeError, match="in the second part"):
        launch.run(fails, [0, 5, 10], numbers)
    assert fails in launch._compiled  # it ran in a parallel region
    assert numbers.all()
    launch.run(fails, [0, 0, 0, 5], numbers)  # one range
    with pytest.raises(RuntimeError, match="in the second part"):
        launch.run(fails, [0, 5, 10], numbers.astype(np.float32))  # compiled for arguments of another type


def test_without_openmp_loops_run_on_one_thread(two_threads, monkeypatch):
    @numba.njit(nogil=True)
    def fills(lo, hi, numbers):
        numbers[lo:hi] += 1

    monkeypatch.setattr(launch, "_parallel", lambda: None)
    assert launch.even(0, 1000, 1000) == [0, 1000]
    numbers = np.zeros(10)
    launch.run(fills, [0, 5, 10], numbers)
    assert fills not in launch._compiled
    assert (numbers == 1).all()


def _add_one(number):
    return number + 1


def test_machine_code_is_saved_by_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "FOLDER", tmp_path)
    loop, results = compiling.compiled(_add_one), []
    with FileLock(tmp_path / "save.lock"):
        thread = threading.Thread(target=lambda: results.append(loop(1)))
        thread.start()
        thread.join(2)
        assert thread.is_alive()
        assert not [*tmp_path.rglob("*.nb?")]
    thread.join(60)
    assert results == [2]
    assert {path.suffix for path in tmp_path.rglob("*.nb?")} == {".nbi", ".nbc"}


@pytest.mark.parametrize("row_cost", [0, 1.5])
def test_ranges_have_equal_costs(row_cost, two_threads):
    degrees = np.random.default_rng(0).integers(0, 9, 40_000)
    ptr = np.concatenate([[0], degrees.cumsum()])
    for lo, hi in ((0, 40_000), (1_000, 30_000)):
        bounds = launch.cut(ptr, lo, hi, 16, row_cost, per_thread=3)
        costs = np.diff([ptr[bound] + row_cost * bound for bound in bounds])
        assert (bounds[0], bounds[-1], len(bounds)) == (lo, hi, 7)
        assert costs.max() - costs.min() <= 2 * (8 + row_cost)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_those_of_numpy(dtype):
    random, routine = np.random.default_rng(0), blas.address(torch.from_numpy(np.empty(0, dtype)).dtype)
    sizes = itertools.product((1, 4, 7, 13), (1, 5, 24, 40, 87), (1, 33, 150))
    for rows, columns, terms in (*sizes, (300, 300, 300)):  # the last by BLAS
        left, right, before = (random.standard_normal(s) for s in ((rows, terms), (terms, columns), (rows, columns)))
        for is_flipped, beta in itertools.product((False, True), (0, 1)):
            first = np.ascontiguousarray(left.T if is_flipped else left).astype(dtype)
            second, out = right.astype(dtype), before.astype(dtype)
            at = [np.uint64(matrix.ctypes.data) for matrix in (first, second, out)]
            size = (rows, columns, terms)
            tile_loops.multiply(
                routine, size, at[0], first.shape[1], is_flipped, at[1], columns, dtype(beta), at[2], columns
            )
            expected = left @ right + beta * before
            assert np.abs(out - expected).max() < (1e-4 if dtype is np.float32 else 1e-11), (size, is_flipped, beta)


@pytest.mark.parametrize("score", ["additive", "multiplicative"])
def test_scores_whose_bound_overflows_have_the_gradients_of_the_reference(score):
    graph, x = random_graph(40, 60, 5), torch.randn(40, 6)
    assert 0 < (graph.structure.group_ptr.diff() == 1).sum() < len(graph.structure.targets.node)
    conv = RGATConv(6, 4, 5, heads=2, score=score)
    with torch.no_grad():
        conv.kernel.weight[:, :, 0], conv.kernel.weight[-1] = 0, 1e6  # no edge has the last relation
    x[3, 0] = 1e34  # of no effect on any score, but on the bound
    assert_matches_reference(conv, x, graph, torch.float32, backend="numba")


@pytest.mark.parametrize("score", ["additive", "multiplicative"])
def test_gradients_where_every_edge_is_alone_in_its_group_read_no_undefined_memory(score):
    graph = RelationalGraph(torch.tensor([[1, 0, 2], [0, 0, 1]]), torch.tensor([0, 1, 0]), num_nodes=3, num_relations=2)
    conv, x = RGATConv(4, 3, 2, score=score).double(), torch.randn(3, 4, dtype=torch.float64)
    cotangent, found = torch.randn(3, 3, dtype=torch.float64), []
    for name in ("torch", *["numba"] * 20):
        leaf = x.clone().requires_grad_()
        for size in range(1, 40):
            np.full(size, np.nan)  # freed memory, which the next buffers may get
        with ops.backend(name):
            found.append(torch.autograd.grad(conv(leaf, graph), leaf, cotangent)[0])
    for gradient in found[1:]:
        assert_close(gradient, found[0], 1e-12)


def test_products_inside_loops_call_blas():
    for dtype in (torch.float32, torch.float64):
        assert blas.address(dtype) != 0


def test_without_blas_the_backend_reports_the_reason(monkeypatch):
    monkeypatch.setattr(blas, "address", lambda dtype: 0)
    dispatch.why_not.cache_clear()
    try:
        assert "BLAS" in dispatch.why_not("numba")
    finally:
        monkeypatch.undo()
        dispatch.why_not.cache_clear()


def test_a_graph_whose_tensors_move_in_memory_is_read_at_its_new_address():
    graph, conv = random_graph(30, 200, 4), RGATConv(6, 4, 4)
    x = torch.randn(30, 6)
    expected = conv(x, graph)
    for leaf in graph.structure.leaves():
        leaf.share_memory_()  # as when sent to another process
    assert torch.equal(conv(x, graph), expected)


def test_double_backward_is_refused_under_a_dispatch_mode():
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    graph, x = random_graph(30, 200, 4), torch.randn(30, 6, requires_grad=True)
    for options in ({}, {"num_bases": 2}):
        conv = RGATConv(6, 4, 4, **options)
        for plan in (None, conv.plan(graph, "aggregate")):
            with Watch():
                (grad,) = torch.autograd.grad(conv(x, graph, plan=plan).sum(), x, create_graph=True)
                with pytest.raises(RuntimeError, match="first derivatives only"):
                    grad.square().sum().backward()
