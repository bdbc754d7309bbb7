import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from rgat.data.store import StoreWriter, open_store
from rgat.data.store.sorting import TripleSorter
from rgat.incoming import incoming_edges
from rgat.sampling import gather_features


def edges(rng, count, num_nodes=50, num_relations=3):
    return (
        rng.integers(num_nodes, size=count),
        rng.integers(num_relations, size=count),
        rng.integers(num_nodes, size=count),
    )


def write(path, chunks, num_nodes=50, relations=("p", "q", "r"), **options):
    with StoreWriter(path, num_nodes, relations, **options) as writer:
        for chunk in chunks:
            writer.add(*chunk)
    return open_store(path)


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("inverses", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
def test_a_store_holds_the_incoming_edges_of_its_graph(tmp_path, inverses, self_loops):
    chunks = [edges(np.random.default_rng(seed), 300) for seed in range(3)]
    store = write(tmp_path / "store", chunks, inverses=inverses, self_loops=self_loops)
    graph = store.to_graph()
    expected = incoming_edges(graph)
    for name in ("node_ptr", "group_ptr", "group_relation", "source"):
        assert torch.equal(getattr(store.incoming, name), getattr(expected, name)), name
        assert getattr(store.incoming, name).dtype == getattr(expected, name).dtype
    distinct = {edge for chunk in chunks for edge in zip(*(column.tolist() for column in chunk), strict=True)}
    triples = store.to_triples()
    assert [tuple(row) for row in triples.edges.tolist()] == sorted(distinct)
    assert (store.num_nodes, store.num_edges, store.num_relations) == (50, graph.num_edges, graph.num_relations)
    assert store.manifest.num_triples == len(distinct)
    assert leftovers(tmp_path) == ["store"]
    assert not any(path.name.startswith("run-") for path in store.path.iterdir())


def test_ids_of_any_integer_type_are_accepted(tmp_path):
    source, relation, target = edges(np.random.default_rng(0), 300, 200, 200)
    names = [f"p{number:03}" for number in range(200)]
    wide = write(tmp_path / "wide", [(source, relation, target)], 200, names)
    for kind in (np.uint8, np.int16, np.uint64):
        store = write(tmp_path / kind.__name__, [[x.astype(kind) for x in (source, relation, target)]], 200, names)
        assert store.manifest == wide.manifest


def test_little_memory_gives_the_same_store_as_much(tmp_path, monkeypatch):
    chunks = [edges(np.random.default_rng(seed), 5_000, 400) for seed in range(4)]
    store = write(tmp_path / "much", chunks, 400)
    assert len(list(store.path.iterdir())) == 5
    small = write(tmp_path / "little", chunks, 400, memory=1)
    assert small.manifest.files == store.manifest.files


@pytest.mark.parametrize("sizes", [(40, 7, 40), (2**31, 2**31, 2**31)])
def test_triples_are_sorted_in_runs_and_merged(tmp_path, sizes):
    rng = np.random.default_rng(0)
    columns = [rng.integers(min(size, 40), size=9_000) for size in sizes]
    sorter = TripleSorter(tmp_path, sizes, memory=1)
    assert sorter.fits_integer == (sizes[0] == 40)
    for start in range(0, 9_000, 1_700):
        sorter.add(*(column[start : start + 1_700] for column in columns))
    assert len(sorter.runs) == 8
    blocks = list(sorter.blocks())
    merged = np.concatenate([np.stack(block, axis=1) for block in blocks])
    assert len(blocks) > 3
    assert np.array_equal(merged, np.unique(np.stack(columns, axis=1), axis=0))
    assert leftovers(tmp_path) == []


def test_large_ids_survive_wide_keys(tmp_path):
    sizes = (2**31, 2**31, 2**31)
    triples = np.array([[2**31 - 1, 0, 256], [256, 2**31 - 1, 0], [0, 0, 2**31 - 1], [0, 0, 0], [0, 0, 0]])
    sorter = TripleSorter(tmp_path, sizes, memory=1)
    sorter.add(*triples.T)
    (block,) = sorter.blocks()
    assert np.array_equal(np.stack(block, axis=1), np.unique(triples, axis=0))


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_a_graph_without_edges_can_be_stored(tmp_path, num_nodes):
    store = write(tmp_path / "store", [], num_nodes, (), self_loops=False)
    assert (store.num_nodes, store.num_edges, store.num_relations) == (num_nodes, 0, 0)
    assert store.incoming.node_ptr.tolist() == [0] * (num_nodes + 1)
    assert store.to_graph().num_nodes == num_nodes


def test_names_are_found_by_binary_search(tmp_path):
    names = sorted(['"zwölf"', "<http://x/a>", "<http://x/ä>", "<http://x/\U0001f600>", "<http://x/\uffff>", "_:b"])
    with StoreWriter(tmp_path / "store", names, ["p"]) as writer:
        writer.add(np.array([0]), np.array([0]), np.array([1]))
    found = open_store(tmp_path / "store").node_names
    assert list(found) == names == found[:] == [found[node] for node in range(len(names))]
    assert [found.find(name) for name in names] == list(range(len(names)))
    assert [found.find(name) for name in ("", "<", "zzz", "\ud800")] == [None] * 4
    assert found[-1] == names[-1]
    assert names[2] in found
    assert "x" not in found
    assert 3 not in found
    with pytest.raises(IndexError, match="from 0 to 5, got 6"):
        found[6]


def test_nodes_without_names_are_numbered(tmp_path):
    names = write(tmp_path / "store", [], 12).node_names
    assert list(names) == names[:] == [f"n{node}" for node in range(12)]
    assert names[-1] == "n11"
    assert [names.find(name) for name in ("n0", "n11", "n12", "n01", "m1", "n", "", "n²", "n99999999999")] == [
        0,
        11,
        *[None] * 7,
    ]
    assert "n3" in names
    assert "n12" not in names


def test_features_and_labels_are_stored(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float16)
    with StoreWriter(tmp_path / "store", 50, ["p"], provenance={"by": "a test"}) as writer:
        for start in (0, 20):
            writer.add_features(x[start : start + 20 if start == 0 else 50])
        writer.set_labels(np.array([7, 3]), np.array([1, 0]), ["cat", "dog"], np.array([2, -1]))
    store = open_store(tmp_path / "store")
    assert torch.equal(store.x, torch.from_numpy(x))
    assert (store.labels.nodes.tolist(), store.labels.classes.tolist()) == ([7, 3], [1, 0])
    assert (store.labels.class_names, store.labels.parts.tolist()) == (("cat", "dog"), [2, -1])
    assert store.provenance == {"by": "a test"}


def test_a_pickled_store_is_opened_again(tmp_path):
    store = write(tmp_path / "store", [edges(np.random.default_rng(0), 3_000)])
    content = pickle.dumps(store)
    assert len(content) < 1_000
    assert torch.equal(pickle.loads(content).incoming.source, store.incoming.source)


BAD = [
    (lambda writer: writer.add(np.array([50]), np.array([0]), np.array([0])), "`source` must be from 0 to 49, got 50"),
    (lambda writer: writer.add(np.array([0]), np.array([-1]), np.array([0])), "`relation` must be from 0 to 2, got -1"),
    (lambda writer: writer.add(np.array([0]), np.array([0]), np.array([0, 1])), r"`target` must be integers \[E\]"),
    (lambda writer: writer.add(np.array([0.5]), np.array([0]), np.array([0])), "`source` must be integers"),
    (lambda writer: writer.add_features(np.zeros((2, 2))), r"float16, bfloat16 or float32 \[n, F\], got float64"),
    (lambda writer: [writer.add_features(np.zeros((1, n), np.float32)) for n in (2, 3)], r"must be float32 \[n, 2\]"),
    (lambda writer: writer.set_labels(np.array([50]), np.array([0]), ["a"]), "`nodes` must be 1 integers from 0 to 49"),
    (lambda writer: writer.set_labels(np.array([5]), np.array([1]), ["a"]), "`classes` must be 1 integers from 0 to 0"),
]


@pytest.mark.parametrize(("act", "message"), BAD)
def test_bad_values_are_refused_and_nothing_is_left(tmp_path, act, message):
    writer = StoreWriter(tmp_path / "store", 50, ["p", "q", "r"])
    with pytest.raises(ValueError, match=message):
        act(writer)
    assert leftovers(tmp_path) == []


def test_too_few_features_and_too_many_nodes_and_unsorted_names_are_refused(tmp_path):
    writer = StoreWriter(tmp_path / "store", 50, ["p"])
    writer.add_features(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="features must have 50 rows, got 2"):
        writer.finish()
    with pytest.raises(ValueError, match="at most 2,147,483,648 nodes and relations, got 3,000,000,000"):
        StoreWriter(tmp_path / "store", 3_000_000_000, ["p"])
    with pytest.raises(ValueError, match='must be sorted and distinct, got "b" before "a"'):
        StoreWriter(tmp_path / "store", ["b", "a"], ["p"])
    assert leftovers(tmp_path) == []


def test_a_folder_with_files_is_refused_and_an_empty_one_is_used(tmp_path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "file").touch()
    with pytest.raises(ValueError, match="full must be a new or empty folder, but holds files"):
        StoreWriter(full, 3, ["p"])
    with pytest.raises(ValueError, match="file must be a new or empty folder, but is a file; choose another"):
        StoreWriter(full / "file", 3, ["p"])
    assert write(empty, [], 3).num_nodes == 3


def test_an_interruption_and_a_forgotten_writer_leave_nothing(tmp_path):

    def chunks():
        yield edges(np.random.default_rng(0), 3_000)
        assert len(leftovers(tmp_path)) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "store", chunks(), memory=1)
    assert leftovers(tmp_path) == []
    writer = StoreWriter(tmp_path / "store", 50, ["p"], memory=1)
    assert len(leftovers(tmp_path)) == 1
    del writer
    assert leftovers(tmp_path) == []


def test_a_forked_process_does_not_remove_what_its_parent_writes(tmp_path):
    code = (
        "import os, sys; from rgat.data.store import StoreWriter; writer = StoreWriter(sys.argv[1], 5, ['p']);"
        "child = os.fork(); child or sys.exit(); os.waitpid(child, 0); writer.finish()"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, tmp_path / "store"]
    subprocess.run(command, timeout=100, check=True)
    assert open_store(tmp_path / "store").num_nodes == 5
    assert leftovers(tmp_path) == ["store"]


@pytest.mark.parametrize("size", [64, 4_000, 30_000])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, full_disk, size):
    message = r"store: cannot be written: File too large; make room, or choose another place"
    with pytest.raises(ValueError, match=message), full_disk(size):
        write(tmp_path / "store", [edges(np.random.default_rng(0), 9_000, 400)], 400, memory=1)
    assert leftovers(tmp_path) == []


def test_the_folder_of_a_killed_process_is_removed_by_the_next_write(tmp_path):
    code = (
        "import os, sys; from rgat.data.store import StoreWriter;"
        "writer = StoreWriter(sys.argv[1], 5, ['p']); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "store"], timeout=100, check=False)
    (left,) = leftovers(tmp_path)
    assert left.endswith(".part")
    write(tmp_path / "store", [])
    assert leftovers(tmp_path) == ["store"]


MEASURE = """
import resource, sys
import numpy as np
from rgat.data.store import StoreWriter
rng = np.random.default_rng(0)
chunks = int(sys.argv[2])
writer = StoreWriter(sys.argv[1], 100_000, ["p"], memory=1 << 23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(chunks):
    source, target = rng.integers(100_000, size=(2, 100_000))
    writer.add(source, np.zeros_like(source), target)
writer.finish()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_number_of_edges(tmp_path):
    peaks = []
    for chunks in (10, 40):
        command = [sys.executable, "-c", MEASURE, str(tmp_path / str(chunks)), str(chunks)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        peaks.append(int(done.stdout) * (1 if sys.platform == "darwin" else 1024))
    assert peaks[1] < peaks[0] + (1 << 24)  # six million more edges would take 72 MB and more


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tensors_are_kept_in_their_own_precision(tmp_path, dtype):
    x = torch.randn(50, 4).to(dtype)
    with StoreWriter(tmp_path / "store", 50, ["r"]) as writer:
        for rows in x.split(20):
            writer.add_features(rows)
    store = open_store(tmp_path / "store")
    assert store.x.dtype == dtype
    assert torch.equal(store.x, x)
    assert torch.equal(gather_features(store.x, torch.tensor([7, 3]), "cpu", torch.float32), x[[7, 3]].float())
    store.verify()


def test_features_of_two_kinds_are_refused(tmp_path):
    writer = StoreWriter(tmp_path / "store", 4, ["r"])
    writer.add_features(torch.zeros(2, 2, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"must be bfloat16 \[n, 2\], got float16"):
        writer.add_features(torch.zeros(2, 2, dtype=torch.float16))
