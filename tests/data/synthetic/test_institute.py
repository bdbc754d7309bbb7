from rgat.data import MISSING, load
from rgat.data.synthetic.institute import LABEL_PREDICATE, institute_triples


def test_the_institute_is_what_its_description_says():
    data = load("institute")
    triples, groups = institute_triples()
    assert 3000 < len(triples) < 7000
    assert len({p for _, p, _ in triples}) == 21
    assert data.graph.num_relations == 2 * 21 + 1 == len(data.relation_names)
    assert data.graph.num_edges == 2 * len(triples) + data.graph.num_nodes
    assert sum(o.startswith('"') for _, _, o in triples) > 500
    assert not any(LABEL_PREDICATE in p for _, p, _ in triples)
    labelled = data.labels != MISSING
    assert labelled.sum() == len(groups) == len(data.train) + len(data.valid) + len(data.test)
    for node in labelled.nonzero().squeeze(1).tolist():
        assert groups[data.node_names[node]] == data.classes[data.labels[node]]
    assert data.labels[labelled].bincount(minlength=4).min() > 40
    assert list(data.node_names) == sorted(data.node_names)
