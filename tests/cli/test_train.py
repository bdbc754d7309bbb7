import gzip
import re

from helpers_institute import write_institute


def test_train_keeps_a_model_and_goes_on_from_its_checkpoint(rgat_here, tmp_path):
    line = [
        "train",
        "institute",
        "--model",
        "additive WIRGAT",
        "--out",
        str(tmp_path / "run"),
        "--hidden",
        "8",
        "--epochs",
    ]
    done = rgat_here(*line, "2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"constant attention +\d+\.\d", done.stdout)
    assert "Best epoch by validation: 2 of 2." in done.stdout
    done = rgat_here(*line, "3")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "continue it with --resume, or choose another folder" in done.stderr
    done = rgat_here(*line, "3", "--resume")
    assert "of 3." in done.stdout
    for wrong in (["--heads", "3"], ["--model", "RGCN", "--heads", "2"], ["--feature-dropout", "1"]):
        done = rgat_here("train", "institute", "--out", str(tmp_path / "other"), *wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not (tmp_path / "other").exists()


def test_a_dump_of_any_name_with_invalid_lines_is_read_on_request(rgat_here, tmp_path):
    graph, labels = write_institute(tmp_path)
    dump, model = tmp_path / "dump", str(tmp_path / "m")
    dump.write_bytes(gzip.compress(b"no triple\n" + graph.read_bytes()))
    options = ["--labels", str(labels), "--out", model, "--features", "identity", "--no-comparison", "--epochs", "1"]
    line = ["train", "--rdf", str(dump), *options]
    refused = rgat_here(*line)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "or `format` (--format) must be given" in refused.stderr
    assert "line 1: not valid ntriples" in rgat_here(*line, "--format", "ntriples").stderr
    plain = dump.with_suffix(".nt.gz")
    plain.write_bytes(b"no triple\n" + graph.read_bytes())
    found = rgat_here("train", "--rdf", str(plain), *options)
    assert "named .gz, but not compressed; read as it is" in found.stdout
    assert "line 1: not valid ntriples" in found.stderr
    done = rgat_here(*line, "--format", "ntriples", "--skip-invalid")
    assert done.returncode == 0, done.stderr
    assert f"skipped: 1 invalid RDF line, the first: {dump}, line 1: " in done.stdout
    assert "macro-F1" in done.stdout
    assert "confusion matrix" in done.stdout
    stages = re.findall(r"^stage (\d) of 6: ([a-z-]+)", done.stdout, re.MULTILINE)
    names = ["reading", "estimate", "cross-validation", "training", "evaluation", "saving"]
    assert list(dict.fromkeys(stages)) == [(str(number), name) for number, name in enumerate(names, 1)]
    assert re.search(r"cross-validation, 5 of 5 folds, epoch 1 of 1, validation accuracy 0\.\d+, done in", done.stdout)
    assert not re.search(r"[\x1b\r]", done.stdout)
    predict = ["predict", model, "--format", "ntriples"]
    assert "--format must be left out here: it is for files of --rdf" in rgat_here(*predict).stderr
    graph.rename(tmp_path / "new")
    assert rgat_here(*predict, "--rdf", str(tmp_path / "new")).returncode == 0
