import re


def test_train_keeps_a_model_and_goes_on_from_its_checkpoint(rgat, tmp_path):
    line = ["train", "institute", "--out", str(tmp_path / "run"), "--hidden", "8", "--epochs"]
    done = rgat(*line, "2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"constant attention +\d+\.\d", done.stdout)
    assert "Best epoch by validation: 2 of 2;" in done.stdout
    done = rgat(*line, "3")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "continue it with --resume, or choose another folder" in done.stderr
    done = rgat(*line, "3", "--resume")
    assert "of 3;" in done.stdout
    for wrong in (["--heads", "3"], ["--model", "RGCN", "--heads", "2"], ["--feature-dropout", "1"]):
        done = rgat("train", "institute", "--out", str(tmp_path / "other"), *wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not (tmp_path / "other").exists()
