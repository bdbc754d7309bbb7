import numpy as np
from helpers_rdf import EX, XSD, same, write
from hypothesis import given, settings
from hypothesis import strategies as st

from rgat.data.rdf import blank_nodes
from rgat.data.rdf.reader import read_triples


def test_anonymous_blank_nodes_are_named_by_their_neighbourhood(tmp_path):
    turtle = f"""@prefix e: <{EX}> .
    e:a e:knows e:b ; e:age "042"^^<{XSD}integer> ; e:has [ e:part [ e:size 2.5e0 ], [ e:size 1.5e0 ] ] .
    e:b e:knows e:c ; e:age 42 . e:c e:age 7 ; e:note "zwölf, \\"quoted\\"\\nand broken"@de ."""
    turtle = turtle.replace("2.5e0", f'"2.5"^^<{XSD}double>').replace("1.5e0", f'"1.5"^^<{XSD}double>')
    expected = read_triples(write(tmp_path))
    for _ in range(3):  # the parser draws new labels each time
        assert same(read_triples(write(tmp_path, turtle, "graph.ttl")), expected)


def lines(*triples):
    return "".join(f"{triple} .\n" for triple in triples)


def test_repeated_triples_and_their_order_do_not_change_ids(tmp_path):
    e = f"<{EX}"
    base = [
        f"_:x {e}p> {e}A>",
        f"_:y {e}p> {e}B>",
        f"_:x {e}q> _:y",
        f"_:z {e}p> {e}A>",
        f"_:u {e}q> _:z",
        f"_:u {e}p> {e}C>",
    ]
    twins = [f"_:x1 {e}p> _:y1", f"_:x2 {e}p> _:y2", f"{e}a> {e}r> _:y1", f"{e}a> {e}r> _:y2"]  # two equal pieces
    square = [f"_:{a} {e}p> _:{b}" for a, b in ("kl", "lm", "mn", "nk")]  # one piece, all alike
    for triples in (base, twins, square, base + twins + square):
        expected = read_triples(write(tmp_path, lines(*triples)))
        for k in range(len(triples)):
            moved = triples[k:] + triples[:k]
            assert same(read_triples(write(tmp_path, lines(*moved, triples[0]), "again.nt")), expected)
            assert same(read_triples(write(tmp_path, lines(*reversed(moved)), "again.nt")), expected)


def test_a_long_list_of_equal_items_is_read(tmp_path):
    """Rounds of refining are bounded; without a bound this one would need thousands."""
    items = " ".join(["1"] * 5000)
    assert len(read_triples(write(tmp_path, f"<{EX}a> <{EX}p> ( {items} ) .", "list.ttl"))) == 10_001


TERM = st.sampled_from(["a", "b", "c", "d"]).map(lambda s: f"<{EX}{s}>")


BLANK = st.sampled_from(["_:p", "_:q", "_:r"])


TRIPLE = st.tuples(st.one_of(TERM, BLANK), TERM, st.one_of(TERM, BLANK, st.sampled_from(['"x"', '"y"@en'])))


@settings(max_examples=60, deadline=None)
@given(st.lists(TRIPLE, max_size=12), st.randoms(use_true_random=False))
def test_shuffled_triples_and_renamed_blank_nodes_give_an_isomorphic_graph(tmp_path_factory, triples, rng):
    folder = tmp_path_factory.mktemp("rdf")
    first = read_triples(write(folder, "".join(" ".join(t) + " .\n" for t in triples)))
    rng.shuffle(triples)
    second = read_triples(write(folder, "".join(" ".join(t) + " .\n" for t in triples), "again.nt"))
    assert first.node_names == second.node_names
    assert first.relation_names == second.relation_names
    size = len(first.node_names)
    degrees = [[sorted(np.bincount(t.edges[:, c], minlength=size)) for c in (0, 2)] for t in (first, second)]
    assert degrees[0] == degrees[1]
    if not any("_:" in term for t in triples for term in t):
        assert same(first, second)


def test_equal_blank_nodes_are_distinguished_in_bounded_time(tmp_path, monkeypatch):
    (tmp_path / "chain.ttl").write_text(f"<{EX}a> <{EX}p> {f'[ <{EX}p> ' * 500}1{' ]' * 500} .")
    rounds, refine = [], blank_nodes._refine

    def count(*arguments):
        colour, used = refine(*arguments)
        rounds.append(used)
        return colour, used

    monkeypatch.setattr(blank_nodes, "_refine", count)
    monkeypatch.setattr(blank_nodes, "MAX_VISITS", 150 * 501)
    triples = read_triples(tmp_path / "chain.ttl")
    assert (len(triples), len(triples.node_names)) == (501, 502)
    assert sum(rounds) == blank_nodes.MAX_ROUNDS + 150
