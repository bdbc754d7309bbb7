import dataclasses

import pytest

from rgat.data import NodeData, load


def test_an_inverse_relation_knows_its_base_relation():
    data = load("institute")
    assert len(data.base_relation) == len(data.relation_names) == 43
    assert data.base_relation == (*range(21), *range(21), 42)  # relations, their inverses, self
    renamed = dataclasses.replace(data, relation_names=tuple(f"r{i}" for i in range(43)))
    assert renamed.base_relation == tuple(range(43))


def test_a_prefix_without_its_base_relation_makes_no_inverse():
    data = dataclasses.replace(load("planted-needle"), relation_names=("hears", "inverse of rules"))
    assert data.base_relation == (0, 1)


@pytest.mark.parametrize("name", ["institute", "molecules"])
def test_a_data_set_is_frozen(name):
    data = load(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"
    if isinstance(data, NodeData):
        with pytest.raises(dataclasses.FrozenInstanceError):
            data.base_relation = ()
