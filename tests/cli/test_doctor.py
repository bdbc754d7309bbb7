import importlib.util
import re

from rgat.cli.doctor import doctor


def test_doctor_says_what_is_there_and_how_to_get_the_rest(rgat, monkeypatch, capsys):
    done = rgat("doctor", columns=120)
    assert done.returncode == 0
    for word in ("torch", "backend"):
        assert word in done.stdout
    for word in ("rdkit", "pyoxigraph", "optuna", "matplotlib", "scipy", "ray", "onnxscript"):
        assert re.search(rf"{word} +(installed: |missing: .*pip install 'rgat\[\w+\]')", done.stdout)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    doctor()
    assert re.search(r"missing: many machines; pip\s+install 'rgat\[ray\]'", capsys.readouterr().out)
