"""Run the examples of docs/sampling.md from top to bottom."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks, names = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL), {}
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/sampling.md", "exec"), names)
    assert names["scores"].shape == (1000, 4)
    assert names["result"].best_epoch in (3, 6)
    assert names["rows"].shape == (len(names["batch"].nodes), 32)
