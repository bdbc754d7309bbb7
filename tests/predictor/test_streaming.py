import csv
import gzip
import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool

import pytest
from helpers_processes import children, is_alive, wait_until

from rgat.data.synthetic.molecules import molecule_set
from rgat.predictor import streaming
from rgat.predictor.predictor import parse_molecules
from rgat.predictor.streaming import predict_file, read_smiles


@pytest.fixture(scope="module")
def smiles():
    return [*molecule_set(40)[0], "C(C", "", "[Na+].[Cl-]"]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(streaming, "BATCH_SIZE", 8)


@pytest.fixture
def inline(monkeypatch):
    """Parse in this process: a worker takes seconds to start."""

    def parsed(rows, workers, vocabulary):
        while texts := [text for _, text in zip(range(streaming.BATCH_SIZE), rows, strict=False)]:
            yield texts, parse_molecules(texts, *vocabulary.reading)

    monkeypatch.setattr(streaming, "_parsed", parsed)


def table(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_a_stream_by_workers_equals_a_prediction_in_memory(tmp_path, graph_model, smiles):
    source, out, shares = tmp_path / "m.smi", tmp_path / "p.csv", []
    source.write_text("".join(f"{text} name of it\n" if text else "\n" for text in smiles))
    done = predict_file(graph_model, source, out, workers=1, progress=lambda step: shares.append(step.share))
    assert done[:3] == (43, 2, 0)
    assert done.unlike == sum(map(bool, graph_model.predict(smiles).warnings))
    rows = table(out)
    expected = graph_model.predict(smiles)
    assert rows[0] == expected.header()
    problem = rows[0].index("problem")
    for row, other in zip(rows[1:], expected.rows(), strict=True):
        assert (row[0], row[problem:-2]) == (other[0], other[problem:-2])  # with the sets
        if not row[problem]:
            numbers = [[float(cell) for cell in (*each[1:problem], each[-2])] for each in (row, other)]
            assert numbers[0] == pytest.approx(numbers[1], abs=2e-6)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert not (tmp_path / "p.csv.part").exists()


@pytest.mark.usefixtures("inline")
def test_an_interrupted_stream_is_resumed_to_the_same_file(tmp_path, graph_model, smiles):
    source, out = tmp_path / "m.csv.gz", tmp_path / "p.tsv"
    with gzip.open(source, "wt") as file:
        file.write("id,SMILES\n" + "".join(f"{row},{text}\n" for row, text in enumerate(smiles)))
    predict_file(graph_model, source, tmp_path / "whole.tsv")

    def stop(step):
        if step.share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_file(graph_model, source, out, progress=stop)
    part = tmp_path / "p.tsv.part"
    part.write_bytes(part.read_bytes() + b"CCO\t0.5")  # a row that was cut off
    with pytest.raises(ValueError, match=r"left over from an interrupted run; resume it \(--resume\)"):
        predict_file(graph_model, source, out)
    done = predict_file(graph_model, source, out, resume=True)
    assert (done.molecules, done.resumed) == (43, 24)
    assert table(out) == table(tmp_path / "whole.tsv")


@pytest.mark.usefixtures("inline")
def test_rows_of_another_run_are_refused(tmp_path, graph_model, monkeypatch):
    monkeypatch.setattr(streaming, "BATCH_SIZE", 1)
    source, out, part = tmp_path / "m.smi", tmp_path / "p.csv", tmp_path / "p.csv.part"
    source.write_text("CCO\nCCN\nCCC\n")
    predict_file(graph_model, source, out)
    whole = out.read_text().splitlines(keepends=True)
    part.write_text("".join(whole[:2]))
    with pytest.raises(ValueError, match="must be of the same model"):  # without a digest of the model
        predict_file(graph_model, source, out, resume=True)
    mark = tmp_path / "p.csv.part.model"
    mark.write_text(streaming._digest(graph_model))
    part.write_text("smiles,other\nCCO,1\n")
    with pytest.raises(ValueError, match="must be of the same model and coverage, but its columns differ"):
        predict_file(graph_model, source, out, resume=True)
    part.write_text(whole[0] + whole[2])
    with pytest.raises(ValueError, match="must be of the same molecule file, but row 1 differs"):
        predict_file(graph_model, source, out, resume=True)
    part.write_text("")
    assert predict_file(graph_model, source, out, resume=True).molecules == 3
    assert out.read_text() == "".join(whole)
    assert not mark.exists()


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("cut", [b"CCO,0.5", b'"CC\n', b'"CC\n(', b"C\xc3"])
def test_rows_with_quoted_newlines_are_resumed_and_a_truncated_row_is_removed(tmp_path, graph_model, cut, monkeypatch):
    monkeypatch.setattr(streaming, "BATCH_SIZE", 2)
    source, out = tmp_path / "m.csv", tmp_path / "p.csv"
    source.write_text('smiles\nCCO\n"CC\n(C)C"\n"C,C"\nCCN\n"C\nC"\nCCC\n')
    predict_file(graph_model, source, out)
    whole = out.read_bytes()
    part = tmp_path / "p.csv.part"
    for rows in range(1, 7):
        lines = table(out)[: rows + 1]
        part.write_text(streaming.table_text(lines, out), newline="")
        part.write_bytes(part.read_bytes() + cut)
        (tmp_path / "p.csv.part.model").write_text(streaming._digest(graph_model))
        done = predict_file(graph_model, source, out, resume=True)
        assert (done.molecules, done.resumed) == (6, rows // 2 * 2), "whole batches are kept"
        assert out.read_bytes() == whole


def test_workers_of_a_killed_prediction_are_gone_soon(tmp_path, graph_model):
    graph_model.save(tmp_path / "model")
    (tmp_path / "m.smi").write_text("CCO\n" * 200_000)
    line = [sys.executable, "-m", "rgat", "predict", str(tmp_path / "model"), "--workers", "2"]
    files = ["--smiles", str(tmp_path / "m.smi"), "--out", str(tmp_path / "p.csv")]
    with subprocess.Popen([*line, *files], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        part = tmp_path / "p.csv.part"
        wait_until(lambda: parent.poll() is not None or (part.exists() and part.stat().st_size > 1000))
        workers = children(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
    assert len(workers) >= 2
    try:
        wait_until(lambda: not any(map(is_alive, workers)), 30)
    finally:
        for pid in filter(is_alive, workers):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "m.csv",
            b"name,structure\na,CC\n",
            r"one column must be called smiles, got name, structure; .*--smiles-column",
        ),
        ("m.csv", b"id,smiles\n1\n", "line 2: must have 2 fields, got 1"),
        ("m.csv", "id,smiles\n1,CC\u00e9\n".encode("latin-1"), "cannot be read"),
        ("m.csv", b'id,smiles\n1,"CC\n', "cannot be read"),
    ],
)
def test_bad_files_of_molecules_are_refused(tmp_path, graph_model, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        predict_file(graph_model, tmp_path / name, tmp_path / "p.csv")


def broken(rows, workers, self_loops):
    raise BrokenProcessPool


def test_wrong_files_and_options_are_refused(tmp_path, graph_model, monkeypatch):
    source = tmp_path / "m.tsv"
    source.write_text("structure\tid\nCC\t1\n")
    assert list(read_smiles(source, "structure")) == ["CC"]
    with pytest.raises(ValueError, match=r"ends in \.csv or \.tsv"):
        predict_file(graph_model, source, tmp_path / "p.nt")
    with pytest.raises(ValueError, match="cannot be read"):
        predict_file(graph_model, tmp_path / "none.smi", tmp_path / "p.csv")
    with pytest.raises(ValueError, match="`workers` must be"):
        predict_file(graph_model, source, tmp_path / "p.csv", workers=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        predict_file(graph_model, source, tmp_path / "file" / "p.csv", smiles_column="structure")
    monkeypatch.setattr(streaming, "_parsed", broken)
    with pytest.raises(ValueError, match="worker processes must stay alive"):
        predict_file(graph_model, source, tmp_path / "q.csv", smiles_column="structure")
