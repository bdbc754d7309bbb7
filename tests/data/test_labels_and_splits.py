import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rgat.data.rdf.labels import read_labels
from rgat.data.splits import grouped_parts, random_parts, stratified_folds, stratified_parts
from rgat.data.tables import read_table


def write(folder, content, name):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.txt", "t.data"])
def test_tables_are_read_with_their_line_numbers(tmp_path, name):
    separator = "\t" if name in ("t.tsv", "t.txt") else ","
    text = f'a{separator}b\n1{separator}"x\ny"\n\n2{separator}z\n'
    table = read_table(write(tmp_path, text, name))
    assert table.header == ("a", "b")
    assert table.rows == [["1", "x\ny"], ["2", "z"]]
    assert table.lines == [2, 5]
    assert table.column("b") == ["x\ny", "z"]


def test_tables_may_be_compressed_and_start_with_a_mark(tmp_path):
    table = read_table(write(tmp_path, gzip.compress(b"\xef\xbb\xbfa,b\r\n1,2\r\n"), "t.csv.gz"))
    assert (table.header, table.rows) == (("a", "b"), [["1", "2"]])


BAD_TABLES = [
    ("a,b\n1,2,3\n", r"t\.csv, line 2: must have 2 fields as the header has, got 3"),
    ('a,b\n1,2\n"open,3\n', r"t\.csv, line 3: not a valid table"),
    ("", r"t\.csv: must begin with a line of column names"),
    ("a,a\n", r"t\.csv: column names must differ, got a, a"),
    (b"a,b\n\xff\xfe,1\n", r"t\.csv: must be UTF-8 text"),
]


@pytest.mark.parametrize(("content", "message"), BAD_TABLES)
def test_bad_tables_are_refused_with_file_and_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path, content, "t.csv"))


def test_a_missing_table_and_a_broken_archive_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        read_table(tmp_path / "missing.csv")
    with pytest.raises(ValueError, match="cannot be read"):
        read_table(write(tmp_path, gzip.compress(b"a,b\n1,2\n" * 100)[:-20], "t.csv.gz"))


def test_labels_take_the_first_and_last_column_unless_told(tmp_path):
    path = write(tmp_path, "node\tid\tclass\nn1\t5\tred\nn1\t6\tred\nn2\t7\tblue\n", "t.tsv")
    assert [(label.node, label.name) for label in read_labels(path)] == [("n1", "red"), ("n2", "blue")]
    assert [label.node for label in read_labels(path, "id", "class")] == ["5", "6", "7"]
    with pytest.raises(ValueError, match=r'must be "node", "id" or "class", got "clas"; did you mean "class"\?'):
        read_labels(path, "node", "clas")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("n1\tred\ttrain\nn1\tblue\ttrain\n", r't\.tsv, line 3: n1 is "blue" here but "red" in .*line 2'),
        ("n1\t\ttrain\n", r"t\.tsv, line 2: node and class must not be empty"),
        ("n1\tred\ttraining\n", r't\.tsv, line 2: the part must be "train", "valid" or "test", got "training"'),
    ],
)
def test_bad_labels_are_refused(tmp_path, rows, message):
    path = write(tmp_path, "node\tclass\tpart\n" + rows, "t.tsv")
    with pytest.raises(ValueError, match=message):
        read_labels(path, "node", "class", "part")


CLASSES = st.lists(st.integers(0, 3), min_size=1, max_size=80)


@given(CLASSES, st.integers(0, 5))
def test_stratified_parts_are_a_partition_in_the_right_shares(classes, seed):
    parts = stratified_parts(classes, (0.6, 0.2), seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(classes)))
    assert abs(len(parts[0]) - 0.6 * len(classes)) <= 1
    for label in set(classes):
        count = classes.count(label)
        taken = sum(classes[place] == label for place in parts[0].tolist())
        assert abs(taken - 0.6 * count) < 2


@given(st.lists(st.integers(0, 3), min_size=5, max_size=80), st.integers(0, 5))
def test_folds_are_a_partition_and_stratified(classes, seed):
    folds = stratified_folds(classes, 5, seed)
    assert sorted(torch.cat(folds).tolist()) == list(range(len(classes)))
    for label in set(classes):
        counts = [sum(classes[place] == label for place in fold.tolist()) for fold in folds]
        assert max(counts) - min(counts) <= 1


def test_random_parts_are_the_published_ones():
    order = np.random.RandomState(122).permutation(8014)
    train, valid, test = random_parts(8014, 122)
    assert [len(part) for part in (train, valid, test)] == [6411, 801, 802]
    assert torch.cat([train, valid, test]).tolist() == order.tolist()


def test_groups_stay_together():
    groups = ["a"] * 5 + ["b"] * 2 + ["c", "d", "e"]
    parts = grouped_parts(groups, (0.7, 0.1))
    assert [[groups[place] for place in part.tolist()] for part in parts] == [["a"] * 5 + ["b"] * 2, ["c"], ["d", "e"]]


def test_bad_splits_are_refused():
    for shares in ((0.9, 0.2), (-0.1, 0.5), (0.0, 0.0)):
        with pytest.raises(ValueError, match="`shares` must be two numbers"):
            random_parts(10, 0, shares)
    with pytest.raises(ValueError, match="`num_folds` must be at most the number of examples, 3, got 5"):
        stratified_folds([0, 1, 0], 5, 0)
