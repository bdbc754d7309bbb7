import math

import pytest
import torch

from rgat.data import from_rdf, from_smiles
from rgat.data.targets import Target, TargetTable, find_kind, output_names, read_targets, standardise, strata

SMILES = ["C", "CC", "CCC", "CCO", "CCCO", "CCN", "c1ccccc1", "c1ccccc1O", "CCCl", "CO", "CN", "CCCN"]


def read(cells, **options):
    origins = [f"t.csv, line {line}" for line in range(2, len(cells) + 2)]
    return read_targets({"y": cells}, origins, "t.csv", **options)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["0", "1", "", "1.0"], "binary"),
        (["0.5", "-3", "1e-3", "NA"], "regression"),
        (["1", "2", "3", "4"], "regression"),
        (["3.2 mg", "4", ">10"], "regression"),
        (["red", "blue", "3"], "multi-class"),
        (["2-butanol", "1,2-dichloroethane", "3-pentanone"], "multi-class"),
        (["a|b", "a", ""], "multi-label"),
    ],
)
def test_the_kind_is_found_from_the_cells(cells, kind):
    assert find_kind(cells) == kind


def test_columns_become_outputs_with_missing_values():
    columns = {"n (mg)": ["1.5", "", "4"], "c": ["red", "blue", ""], "b": ["0", "1", ""], "l": ["x|y", "NA", "y"]}
    table = read_targets(columns, ["a", "b", "c"], "t.csv")
    assert [target.kind for target in table.targets] == ["regression", "multi-class", "binary", "multi-label"]
    assert output_names(table.targets) == ("n (mg)", "c=blue", "c=red", "b", "l=x", "l=y")
    assert table.targets[0].unit == "mg"
    nan = math.nan
    expected = torch.tensor([[1.5, 0, 1, 0, 1, 1], [nan, 1, 0, 1, nan, nan], [4, nan, nan, nan, 0, 1]])
    assert torch.equal(table.values.isnan(), expected.isnan())
    assert torch.equal(table.values.nan_to_num(), expected.double().nan_to_num())
    assert output_names(table.targets[1:2]) == ("blue", "red")
    semicolons = read(["x; y", "y"], task="multi-label")
    assert semicolons.targets[0].classes == ("x", "y")


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (["1.5", "2", "abc"], {}, r't\.csv, line 4: y must be a number, as most cells .* got "abc"; correct it, leave'),
        (["1.5", "1,5"], {}, r'line 3: y must be a number with a decimal point .* got "1,5"; write 1,5 as 1\.5'),
        (["1.5", "1,000"], {}, r'line 3: y must be a number with a decimal point .* got "1,000"; .* 1,000 as 1000'),
        (["3.2 mg", "2"], {}, r'line 2: y must be a number alone, got "3\.2 mg"; write 3\.2, and the unit into'),
        (["2.5", "inf"], {}, r'line 3: y must be a number that is finite, got "inf"; correct it, or leave the cell'),
        (["2.5", "1e999"], {}, r'line 3: y must be a number that is finite, got "1e999"'),
        (["2.5", ">10"], {}, r'line 3: y must be a number, got ">10"; pass `censored` \(--censored\)'),
        (["2.5", "1_0"], {}, r"line 3: y must be a number, as most"),
        (["", "NA"], {}, r"t\.csv: column y must hold some values to learn, got none; leave it out"),
        (["0", "1", "1", "2"], {}, r'line 5: task y must be 0, 1 or empty, got "2"; correct it, or say .*y=regression'),
        (["1"], {"task": "regresion"}, r'did you mean "regression"\?'),
        (["1"], {"task": {"z": "regression"}}, r'column of `task` \(--task\)` must be "y", got "z"'),
    ],
)
def test_bad_cells_are_named_with_what_to_do(cells, options, message):
    with pytest.raises(ValueError, match=message):
        read(cells, **options)


def test_bounds_are_read_and_left_out_of_mean_and_scale():
    table = read([">10", "<= 0.5", "1", "3"], censored=True)
    assert table.values.flatten().tolist() == [10, 0.5, 1, 3]
    assert table.bounds.flatten().tolist() == [1, -1, 0, 0]
    (target,) = standardise(table, torch.arange(4))
    assert (target.mean, target.scale) == (2, 1)
    assert read(["1", "3"], task="regression").bounds is None


def test_mean_and_scale_are_those_of_the_training_part():
    table = TargetTable((Target("y", "regression"),), torch.tensor([[1.0], [3.0], [100.0], [math.nan]]).double())
    (target,) = standardise(table, torch.tensor([0, 1, 3]))
    assert (target.mean, target.scale) == (2, 1)


def test_strata_are_quantiles_classes_and_rare_labels():
    numbers = torch.arange(10).double().view(-1, 1)
    assert strata([Target("y", "regression")], numbers) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    labels = torch.tensor([[1.0, 1], [1, 0], [0, 0], [math.nan, math.nan]]).double()
    assert strata([Target("y", "multi-label", ("a", "b"))], labels) == [1, 0, 2, -1]
    assert strata([Target("y", "multi-class", ("a", "b"))], labels[:2]) == [0, 0]


def write(folder, header, *columns):
    path = folder / "m.csv"
    rows = zip(SMILES, *columns, strict=True)
    path.write_text("\n".join([f"smiles,{header}", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_the_one_column_of_numbers_of_molecules_is_found(tmp_path):
    data = from_smiles(write(tmp_path, "logS", [length / 3 for length in range(12)]), shares=(0.5, 0.25))
    assert [(target.name, target.kind) for target in data.targets] == [("logS", "regression")]
    assert (data.tasks, data.values.shape, data.labels.unique().tolist()) == (("logS",), (12, 1), [0])
    known = data.values[data.train]
    assert data.targets[0].mean == pytest.approx(float(known.mean()))
    ids = from_smiles(write(tmp_path, "id,t", range(1, 13), [n % 2 for n in range(12)]), tasks=["t"])
    assert ids.values is None  # 0/1 tasks alone stay labels
    assert [target.kind for target in ids.targets] == ["binary"]
    with pytest.raises(ValueError, match=r"column id holds numbers other than 0 and 1; .*--task id=regression"):
        from_smiles(write(tmp_path, "id", range(1, 13)))


def test_columns_of_molecules_are_learned_by_name_and_kind(tmp_path):
    colours = ["red", "blue", "green"] * 4
    path = write(tmp_path, "logS,colour,note", [n / 7 for n in range(12)], colours, ["x"] * 12)
    data = from_smiles(path, tasks=["logS", "colour"])
    assert data.tasks == ("logS", "colour=blue", "colour=green", "colour=red")
    assert data.provenance["ignored_columns"] == ["note"]
    assert from_smiles(path, task={"colour": "multi-class"}).tasks == ("blue", "green", "red")
    assert from_smiles(path, task="regression").tasks == ("logS",)
    with pytest.raises(ValueError, match=r'must be named for a "multi-class" task: `tasks` \(--tasks\), got logS, col'):
        from_smiles(path, task="multi-class")
    with pytest.raises(ValueError, match="some column beside smiles must hold numbers, got colour"):
        from_smiles(write(tmp_path, "colour", colours), task="regression")
    (tmp_path / "m.csv").write_text("smiles,y\n")
    with pytest.raises(ValueError, match=r"m\.csv: must have rows below the column names, got none"):
        from_smiles(tmp_path / "m.csv", tasks=["y"])
    (tmp_path / "m.csv").write_text("smiles,y\nCC,1,5\n")
    with pytest.raises(ValueError, match=r"line 2: must have 2 fields .* got 3; write decimal points instead of"):
        from_smiles(tmp_path / "m.csv")


EX = "http://x.org/"
TRIPLES = "".join(f"<{EX}{n}> <{EX}cites> <{EX}{(n + 1) % 12}> .\n" for n in range(12))


def nodes(folder, rows, header="node\ty", **options):
    (folder / "g.nt").write_text(TRIPLES + options.pop("more", ""))
    (folder / "l.tsv").write_text(f"{header}\n" + "".join(f"{EX}{n}\t{cell}\n" for n, cell in rows))
    return from_rdf(folder / "g.nt", folder / "l.tsv", **options)


def test_numbers_and_labels_of_nodes_are_found(tmp_path):
    data = nodes(tmp_path, [(n, n / 4) for n in range(10)], shares=(0.6, 0.2))
    assert [target.kind for target in data.targets] == ["regression"]
    assert (data.classes, (data.labels == 0).sum(), len(data.train)) == (("y",), 10, 6)
    assert data.values[data.node_names.index(f"<{EX}3>")].item() == 0.75
    labels = nodes(tmp_path, [(n, "a|b" if n % 2 else "b") for n in range(10)])
    assert labels.targets == (Target("y", "multi-label", ("a", "b")),)
    classes = nodes(tmp_path, [(n, n % 3) for n in range(10)])
    assert classes.values is None
    assert classes.targets == (Target("class", "multi-class", ("0", "1", "2")),)
    whole = nodes(tmp_path, [(n, n) for n in range(10)], task="regression")
    assert whole.targets[0].kind == "regression"


def test_several_rows_of_a_node_are_labels_only_if_said(tmp_path):
    rows = [(n, "a") for n in range(10)] + [(n, "b") for n in range(0, 10, 2)]
    with pytest.raises(ValueError, match=r'l\.tsv, line 12: .* is "b" here but "a" .*or say `task` "multi-label"'):
        nodes(tmp_path, rows)
    data = nodes(tmp_path, rows, task="multi-label")
    assert data.classes == ("a", "b")
    assert data.values[data.node_names.index(f"<{EX}2>")].tolist() == [1, 1]
    assert data.values[data.node_names.index(f"<{EX}3>")].tolist() == [1, 0]
    with pytest.raises(ValueError, match=r'line 12: .* is "2\.5" here but "1\.5" in .*line 2; keep one of them'):
        nodes(tmp_path, [(n, "1.5") for n in range(10)] + [(0, "2.5")])


def test_values_of_a_predicate_may_be_numbers_or_labels(tmp_path):
    more = "".join(f'<{EX}{n}> <{EX}age> "{n / 8}" .\n<{EX}{n}> <{EX}is> <{EX}t{n % 3}> .\n' for n in range(10))
    more += f"<{EX}0> <{EX}is> <{EX}t2> .\n"
    (tmp_path / "g.nt").write_text(TRIPLES + more)
    ages = from_rdf(tmp_path / "g.nt", label_predicate=f"{EX}age", drop_predicates=[f"{EX}is"])
    assert (ages.targets[0].kind, int((ages.labels == 0).sum())) == ("regression", 10)
    assert not any("age" in name for name in ages.relation_names)
    with pytest.raises(ValueError, match=r'must have one value of .*; keep one, or say `task` "multi-label"'):
        from_rdf(tmp_path / "g.nt", label_predicate=f"{EX}is")
    types = from_rdf(tmp_path / "g.nt", label_predicate=f"{EX}is", task="multi-label")
    assert types.values[types.node_names.index(f"<{EX}0>")].sum() == 2


def test_mixed_columns_of_nodes_may_miss_values(tmp_path):
    rows = [(n, f"{n / 3}\t{'ab'[n % 2]}\t{n % 2}" if n else "\t\t") for n in range(12)]
    options = {"header": "node\tage\tgroup\tactive", "label_column": ["age", "group", "active"], "shares": (0.5, 0.25)}
    data = nodes(tmp_path, rows, **options)
    assert data.classes == ("age", "group=a", "group=b", "active")
    assert (data.labels == 0).sum() == 11  # a node without any value has no label
    small = from_rdf(tmp_path / "g.nt", tmp_path / "l.tsv", label_column=options["label_column"], hops=1)
    assert torch.equal(small.values.isnan(), data.values[[data.node_names.index(n) for n in small.node_names]].isnan())
    (tmp_path / "t.tsv").write_text(f"node\ty\n{EX}1\t1.5\n")
    (tmp_path / "v.tsv").write_text(f"node\tz\n{EX}2\t1.5\n")
    parts = from_rdf(tmp_path / "g.nt", train=tmp_path / "t.tsv", valid=tmp_path / "v.tsv")
    assert (parts.classes, len(parts.train), len(parts.valid)) == (("y",), 1, 1)
    with pytest.raises(ValueError, match="must have rows below the column names, got none"):
        nodes(tmp_path, [], task="regression")


def test_what_cannot_be_learned_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"t\.csv, line 2: column y must name labels to learn, got none in any row"):
        read([";", ";"], task="multi-label")
    with pytest.raises(ValueError, match=r'y must be a number of at most 1e\+30 in size, got "1e300"; correct it, or'):
        read(["1.5", "1e300"])
    rows = [(n, "abc"[n % 3]) for n in range(1, 10)]
    with pytest.raises(ValueError, match='task y must be 0, 1 or empty, got "b"; correct it, or say `task` "multi-c'):
        nodes(tmp_path, rows, task="binary")


def test_a_node_without_a_class_is_not_labelled(tmp_path):
    data = nodes(tmp_path, [(1, "a"), (2, "b"), (3, ""), (4, "NA")])
    assert data.classes == ("a", "b")
    assert int((data.labels >= 0).sum()) == 2


def test_a_store_keeps_classes_alone_and_takes_any_table(tmp_path):
    from rgat.data import convert

    (tmp_path / "g.nt").write_text(TRIPLES)
    (tmp_path / "l.tsv").write_text(f"node\ty\n{EX}1\t1.5\n{EX}2\t2.5\n{EX}3\t3.5\n")
    with pytest.raises(ValueError, match=r"the labels that a store keeps must be one class per node.* `rgat train`"):
        convert(tmp_path / "g.nt", tmp_path / "s", tmp_path / "l.tsv", task="regression")
    convert(tmp_path / "g.nt", tmp_path / "store")
    loaded, stored = (from_rdf(tmp_path / "store", tmp_path / "l.tsv", in_memory=each) for each in (True, False))
    assert stored.is_stored
    assert loaded.targets == stored.targets
    assert stored.targets[0].kind == "regression"
    assert stored.classes == ("y",)
    for part in ("train", "valid", "test"):
        assert torch.equal(getattr(loaded, part), getattr(stored, part))
    assert torch.equal(loaded.values.nan_to_num(-1), stored.values.nan_to_num(-1))
