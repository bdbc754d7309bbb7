import gzip

import pytest

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
