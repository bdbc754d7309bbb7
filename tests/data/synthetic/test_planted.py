import pytest
import torch

from rgat.data.synthetic.planted import NUM_WITNESSES, planted


@pytest.mark.parametrize("kind", ["needle", "rivals"])
def test_in_the_planted_sets_the_one_loud_witness_names_the_class(kind):
    data = planted(kind)
    cases = len(data.node_names) // (NUM_WITNESSES + 2)
    witnesses = data.x[: cases * NUM_WITNESSES].view(cases, NUM_WITNESSES, -1)
    named, loud = witnesses[..., :4].argmax(-1), witnesses[..., 4] > 0
    truth = data.labels[-cases:]
    assert (loud.sum(1) == 1).all()
    assert torch.equal(named[loud], truth)
    if kind == "needle":
        counts = torch.nn.functional.one_hot(named, 4).sum(1)
        assert (counts == NUM_WITNESSES // 4).all()  # so a mean over the witnesses is the same for every case
    group_sizes = data.graph.structure.group_ptr.diff()
    assert group_sizes.max() == (NUM_WITNESSES if kind == "needle" else 1)


def test_in_the_consensus_most_witnesses_name_the_class():
    data = planted("consensus")
    cases = len(data.node_names) // (NUM_WITNESSES + 2)
    votes = data.x[: cases * NUM_WITNESSES].view(cases, NUM_WITNESSES, -1)[..., :4].mean(1)
    assert (votes.argmax(1) == data.labels[-cases:]).double().mean() > 0.9


def test_another_seed_gives_another_draw():
    assert not torch.equal(planted("needle", 0).x, planted("needle", 1).x)
