import json
import os

import numpy as np
import pytest

from rgat.data import from_rdf
from rgat.data.store import StoreWriter, open_store
from rgat.data.store import manifest as manifest_module
from rgat.sampling import NeighborSampler

FILES = ["group_ptr.npy", "group_relation.npy", "name_ptr.npy", "node_names.npy", "node_ptr.npy", "source.npy"]


@pytest.fixture
def folder(tmp_path):
    with StoreWriter(tmp_path / "store", ["a", "b", "c"], ["p"]) as writer:
        writer.add(np.array([0, 1]), np.array([0, 0]), np.array([1, 2]))
    return tmp_path / "store"


def test_opening_reads_only_the_manifest_and_the_heads_of_files(folder, monkeypatch):
    assert sorted(open_store(folder).manifest.files) == FILES
    monkeypatch.setattr(manifest_module, "crc32", lambda path: pytest.fail("a file is read as a whole"))
    store = open_store(folder)
    for tensor in store.mapped[:4]:
        assert tensor.untyped_storage().nbytes() > 0
    for name in FILES:  # what is mapped follows the files, so nothing was copied
        with (folder / name).open("r+b") as file:
            file.seek(128)
            file.write(b"\x00" * ((folder / name).stat().st_size - 128))
    assert store.mapped.source.tolist() == [0] * store.num_edges
    assert [os.fsencode(name) for name in store.node_names] == [b""] * 3


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_missing_file_is_refused(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(ValueError, match=rf"{name}: must have {len(content)} bytes, but has {len(content) - 1}; write"):
        open_store(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name}: must have {len(content)} bytes, but is missing; write it again"):
        open_store(folder)


@pytest.mark.parametrize("use", [lambda store: store.verify(), lambda store: NeighborSampler(store, [-1]),
                                 lambda store: store.to_triples(), lambda store: from_rdf(store.path, [])],
                         ids=["verify", "sampler", "triples", "data set"])  # fmt: skip
@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_found_before_it_is_used(folder, name, use):
    open_store(folder).verify()
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}: has changed since it was written; write it again with"):
        use(open_store(folder))


def test_a_damaged_head_of_a_file_is_refused(folder):
    path = folder / "source.npy"
    content = path.read_bytes()
    for old, new in ((b"\x93NUMPY", b"\x93NUMPi"), (b"<i4", b"<u4"), (b"(7,)", b"(8,)"), (b"{'descr", b"{'desrc")):
        assert old in content
        path.write_bytes(content.replace(old, new))
        with pytest.raises(ValueError, match=r"source\.npy: is damaged: .*; write it again with `rgat data convert`"):
            open_store(folder)


def changed(folder, **fields):
    path = folder / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


DAMAGE = [
    (lambda folder: changed(folder, version=99), r"must be a store of version 1, got version 99; write it again"),
    (
        lambda folder: changed(folder, format="other"),
        r"must be a store, but its store\.json is of something else; write one with",
    ),
    (lambda folder: changed(folder, num_nodes=4), r"store\.json: has changed since it was written; write it again"),
    (lambda folder: changed(folder, more=4), r"store\.json: has changed since it was written"),
    (lambda folder: (folder / "store.json").write_text("[1]"), r"its store\.json is of something else"),
    (lambda folder: (folder / "store.json").write_text('{"a": '), r"store\.json: must be JSON, but is damaged"),
    (lambda folder: (folder / "store.json").write_bytes(b"\xff\xfe"), r"store\.json: must be JSON, but is damaged"),
    (lambda folder: (folder / "store.json").write_text("[" * 100_000), r"store\.json: must be JSON, but is damaged"),
    (
        lambda folder: (folder / "store.json").unlink(),
        r"store: must be a store, but has no store\.json; write one with",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_a_foreign_or_damaged_manifest_is_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message):
        open_store(folder)


MADE_UP = [
    {"num_nodes": "3"},
    {"num_edges": -1},
    {"num_groups": None},
    {"inverses": 1},
    {"relation_names": [7]},
    {"feature_type": "object"},
    {"provenance": []},
    {"files": []},
    {"files": {"source.npy": 7}},
    {"files": {"../source.npy": {"bytes": 1, "crc32": 1}}},
]


@pytest.mark.parametrize("fields", MADE_UP, ids=str)
def test_a_made_up_manifest_is_refused(folder, fields):
    path = folder / "store.json"
    content = json.loads(path.read_text()) | fields
    del content["format"], content["version"], content["crc32"]
    content = {"format": "rgat store", "version": 1, "crc32": manifest_module._seal(content)} | content
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"store\.json: has changed since it was written; write it again"):
        open_store(folder)


def test_a_manifest_that_is_a_folder_is_refused(folder):
    (folder / "store.json").unlink()
    (folder / "store.json").mkdir()
    with pytest.raises(ValueError, match=r"store\.json: cannot be read: it must be a regular file, got a folder"):
        open_store(folder)
