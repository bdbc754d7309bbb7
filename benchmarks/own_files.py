"""How good the defaults are on plain files: AIFB as RDF and TSV over several seeds, Tox21 as CSV.

    python benchmarks/own_files.py aifb FOLDER --ensemble 5 --seeds 10
    python benchmarks/own_files.py tox21 tox21.csv.gz --ensemble 3

The configuration is the default one, chosen by cross-validation inside the training part of AIFB and on the validation
part of Tox21. Test examples are looked at once per seed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import rgat
from rgat.data import from_rdf, from_smiles

WANTED = 34  # of AIFB's 36 test persons


def aifb(folder: Path, ensemble: int, seeds: int) -> None:
    data = from_rdf(
        folder / "aifb_stripped.nt.gz",
        train=folder / "trainingSet.tsv",
        test=folder / "testSet.tsv",
        node_column="person",
        label_column="label_affiliation",
    )
    right = []
    for seed in range(seeds):
        started = time.perf_counter()
        report = rgat.fit(data, ensemble=ensemble, seed=seed, comparison=False).report
        right.append(report["right"])
        seconds = time.perf_counter() - started
        print(json.dumps({"seed": seed, "right": right[-1], "of": report["tested"], "seconds": seconds}), flush=True)
    print(f"{sum(number >= WANTED for number in right)} of {seeds} seeds have {WANTED} or more of 36 right: {right}")


def tox21(path: Path, ensemble: int, seed: int) -> None:
    started = time.perf_counter()
    data = from_smiles(path, seed=seed, relaxed=True, skip_invalid=True)
    report = rgat.fit(data, ensemble=ensemble, seed=seed, comparison=False).report
    print(json.dumps(report | {"seconds": time.perf_counter() - started}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("aifb", "tox21"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--ensemble", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=10, help="of AIFB: how many; of Tox21: which one")
    arguments = parser.parse_args()
    run = aifb if arguments.data == "aifb" else tox21
    run(arguments.path, arguments.ensemble, arguments.seeds)


if __name__ == "__main__":
    main()
