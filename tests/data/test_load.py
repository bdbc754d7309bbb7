import subprocess
import sys

import pytest

from rgat.data import BUILT_IN, load


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_parts_of_built_in_sets_are_apart(name):
    data = load(name)
    parts = [set(ids.tolist()) for ids in (data.train, data.valid, data.test)]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert all(parts)
    assert name in str(data)
    assert data.provenance


def test_data_do_not_depend_on_hash_order():
    code = (
        "import hashlib, torch; from rgat.data import BUILT_IN, load\n"
        "digest = hashlib.sha256()\n"
        "for name in BUILT_IN:\n"
        "    d = load(name)\n"
        "    g = d.graph if hasattr(d, 'graph') else d.graphs\n"
        "    for t in (g.edge_index, g.edge_type, d.labels, d.train, d.valid, d.test):\n"
        "        digest.update(t.contiguous().numpy().tobytes())\n"
        "print(digest.hexdigest())"
    )
    outputs = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r'got "institut"; did you mean "institute"\?'):
        load("institut")
