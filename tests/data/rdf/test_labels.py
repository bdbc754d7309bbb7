import pytest
import torch
from helpers_rdf import EX, table, write

from rgat.data import MISSING, from_rdf
from rgat.data.rdf.labels import LabelSource, match_labels, read_label_tables, read_labels, similar_node


def test_labels_come_with_a_column_of_parts(tmp_path):
    labels = table(tmp_path, f"node id class part\n{EX}a 1 red train\n<{EX}b> 2 blue valid\n{EX}c 3 red test\n")
    data = from_rdf(write(tmp_path), labels, label_column="class", split_column="part")
    a, b, c = (data.node_names.index(f"<{EX}{n}>") for n in "abc")
    assert data.classes == ("blue", "red")
    assert [data.labels[n].item() for n in (a, b, c)] == [1, 0, 1]
    assert (data.labels != MISSING).sum() == 3
    assert (data.train.tolist(), data.valid.tolist(), data.test.tolist()) == ([a], [b], [c])


def test_labels_come_as_a_file_per_part(tmp_path):
    train = table(tmp_path, f"node class\n{EX}a red\n{EX}b blue\n", "train.tsv")
    test = table(tmp_path, f"node,class\n{EX}c,red\n", "test.csv")
    data = from_rdf(write(tmp_path), train=train, test=test)
    assert (len(data.train), len(data.valid), len(data.test)) == (2, 0, 1)
    with pytest.raises(ValueError, match="or by a predicate, got several"):
        from_rdf(write(tmp_path), train, test=test)
    with pytest.raises(ValueError, match=r"test\.csv, line 2: .* has a label in .*other\.tsv, line 2"):
        from_rdf(write(tmp_path), train=table(tmp_path, f"node class\n{EX}c blue\n", "other.tsv"), test=test)


def test_a_node_written_with_and_without_brackets_is_one_node(tmp_path):
    labels = table(tmp_path, f"node class part\n{EX}a red train\n<{EX}a> blue test\n")
    with pytest.raises(ValueError, match=r"labels\.tsv, line 3: .* has a label in .*line 2 already"):
        from_rdf(write(tmp_path), labels, split_column="part")


def test_labels_are_split_by_seed_and_class(tmp_path):
    text = "".join(f"<{EX}n{i}> <{EX}p> <{EX}m{i}> .\n" for i in range(100))
    rows = "".join(f"{EX}n{i} {'red' if i < 20 else 'blue'}\n" for i in range(100))
    path, labels = write(tmp_path, text), table(tmp_path, "node class\n" + rows)
    data = from_rdf(path, labels, seed=3)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [80, 10, 10]
    red = data.classes.index("red")
    assert [int((data.labels[part] == red).sum()) for part in (data.train, data.valid, data.test)] == [16, 2, 2]
    assert torch.equal(from_rdf(path, labels, seed=3).test, data.test)
    assert not torch.equal(from_rdf(path, labels, seed=4).test, data.test)


def test_unknown_nodes_are_named_and_dropped_only_on_request(tmp_path):
    labels = table(tmp_path, f"node class\n{EX}a red\n{EX}zz blue\n{EX}b red\n")
    with pytest.raises(ValueError, match=r"line 3: node .*zz is not in the graph, .* \(1 of 3 labels"):
        from_rdf(write(tmp_path), labels)
    data = from_rdf(write(tmp_path), labels, skip_unknown=True)
    assert (data.labels != MISSING).sum() == 2


def test_labels_take_the_first_and_last_column_by_default(tmp_path):
    path = write(tmp_path, "node\tid\tclass\nn1\t5\tred\nn1\t6\tred\nn2\t7\tblue\n", "t.tsv")
    assert [(label.node, label.name) for label in read_labels(path)] == [("n1", "red"), ("n2", "blue")]
    assert [label.node for label in read_labels(path, "id", "class")] == ["5", "6", "7"]
    with pytest.raises(ValueError, match=r'must be "node", "id" or "class", got "clas"; did you mean "class"\?'):
        read_labels(path, "node", "clas")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("n1\tred\ttrain\nn1\tblue\ttrain\n", r't\.tsv, line 3: n1 is "blue" here but "red" in .*line 2'),
        ("n1\t\ttrain\nn2\tNA\ttrain\n", r"t\.tsv: column class must hold some classes to learn, got none"),
        ("\tred\ttrain\n", r"t\.tsv, line 2: the node must not be empty"),
        ("n1\tred\ttraining\n", r't\.tsv, line 2: the part must be "train", "valid" or "test", got "training"'),
    ],
)
def test_bad_labels_are_refused(tmp_path, rows, message):
    path = write(tmp_path, "node\tclass\tpart\n" + rows, "t.tsv")
    with pytest.raises(ValueError, match=message):
        read_labels(path, "node", "class", "part")


def test_an_unknown_node_is_shown_beside_a_similar_one_of_the_graph(tmp_path):
    labels = table(tmp_path, f"node class\n{EX}a red\n{EX}b/ blue\n")
    with pytest.raises(ValueError, match=rf"line 3: node {EX}b/ is not in the graph, which has nodes such as <{EX}b>"):
        from_rdf(write(tmp_path), labels)
    names = ['"a"', "<http://x.org/a>", "<http://x.org/person/12>", "<http://z.org/b>"]
    assert similar_node("http://x.org/person/1", names) == "<http://x.org/person/12>"
    assert similar_node("<http://x.org/person/13>", names) == "<http://x.org/person/12>"
    assert similar_node("a", names) == "<http://x.org/a>"
    assert similar_node("zzz", names) == "<http://z.org/b>"


@pytest.mark.parametrize("first", [f"{EX}a", f"<{EX}a>"])
def test_a_table_without_column_names_is_noticed(tmp_path, first):
    labels = table(tmp_path, f"{first} red\n{EX}b blue\n{EX}c red\n")
    message = r"labels\.tsv: must begin with a line of column names, but its first line is about a node of the graph"
    with pytest.raises(ValueError, match=message):
        from_rdf(write(tmp_path), labels)
    with pytest.raises(ValueError, match=message):
        from_rdf(write(tmp_path), train=labels)
    assert len(from_rdf(write(tmp_path), labels, node_column=first, skip_unknown=True).classes) == 2


def test_nodes_are_split_by_time_by_group_or_at_random(tmp_path):
    lines = [f"n{row}\tc{row % 2}\t{2000 + row}\tlab{row % 5}\n" for row in range(20)]
    path = write(tmp_path, "node\tclass\tyear\tlab\n" + "".join(lines), "t.tsv")
    names = sorted(f"n{row}" for row in range(20))
    options = {"labels": path, "label_column": "class", "shares": (0.6, 0.2)}

    def parts(**more):
        source = LabelSource(**options | more)
        found = match_labels(read_label_tables(source), names, False)
        _, ids = found.split(20, source)
        return [[int(names[i][1:]) for i in part.tolist()] for part in ids]

    train, valid, test = parts(split="time", split_column="year")
    assert max(train) < min(valid) <= max(valid) < min(test)
    groups = [{row % 5 for row in part} for part in parts(split="group", split_column="lab")]
    assert sum(map(len, groups)) == 5
    assert all(groups)
    assert parts(split="random", seed=1) != parts(split="stratified", seed=1)
    with pytest.raises(ValueError, match=r'line 2: a split by time needs a column of dates .* got "lab0"'):
        parts(split="time", split_column="lab")
    with pytest.raises(ValueError, match="`split` must be"):
        parts(split="scaffold")
    with pytest.raises(ValueError, match='the split "time" needs one table of labels'):
        LabelSource(train=path, split="time", split_column="year")
