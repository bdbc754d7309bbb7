"""Run the units of a folder and write their records there: `python -m rgat.experiments.work FOLDER`.

For a machine that has torch, numpy and safetensors but none of the libraries that search, or that read RDF and SMILES.
The folder is that of an experiment after `rgat reproduce ... --propose`. What is done already is not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rgat.experiments.portable import decode
from rgat.experiments.records import has_record, write_record
from rgat.experiments.units import train_many


def work(folder: Path, out: Path | None = None, device: str = "cpu") -> int:
    """Do the units of ``folder`` whose records are missing in ``out`` (by default the folder itself); say how many."""
    try:
        units = json.loads((folder / "units.json").read_bytes())
        content = (folder / "data.safetensors").read_bytes()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder} must hold units.json and data.safetensors ({error}); write them with `rgat reproduce --propose`"
        ) from error
    out = out or folder
    left = [unit for unit in units if not has_record(out, unit)]
    for number, record in enumerate(train_many(left, decode(content), device), 1):
        path = write_record(out, record)
        print(f"{number} of {len(left)}: {path.relative_to(out)}, {record['status']}", flush=True)
    return len(left)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m rgat.experiments.work", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="of an experiment, with units.json and data.safetensors")
    parser.add_argument("--out", type=Path, help="where records go, if not there")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    given = parser.parse_args(arguments)
    try:
        work(given.folder, given.out, given.device)
    except ValueError as error:
        print(f"rgat: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
