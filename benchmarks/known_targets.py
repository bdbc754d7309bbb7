"""Learn computed properties of Tox21's molecules, whose answers are known, and compare with simple systems.

    python benchmarks/known_targets.py [--molecules 700] [--seed 0]

The targets are of three kinds: logP by Crippen's rules (a number), the number of rings (classes), and whether there is
a nitrogen atom (0 or 1). All settings are defaults, without descriptors beside the graph, which would contain the
answers; the split is random, 80/10/10.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
from pathlib import Path

from rdkit import Chem, RDLogger
from rdkit.Chem import Crippen

import rgat


def write_table(path: Path, count: int, seed: int) -> None:
    """Write a table of molecules and their computed properties."""
    RDLogger.DisableLog("rdApp.*")
    names = list(rgat.data.load("tox21-distinct").graph_names)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["smiles", "logP", "rings", "nitrogen"])
        for smiles in random.Random(seed).sample(names, count):
            molecule = Chem.MolFromSmiles(smiles)
            if molecule is None or molecule.GetNumAtoms() < 4:
                continue
            rings = min(molecule.GetRingInfo().NumRings(), 4)
            has_nitrogen = any(atom.GetSymbol() == "N" for atom in molecule.GetAtoms())
            logp = Crippen.MolLogP(molecule)
            table.writerow([smiles, f"{logp:.4f}", "4 or more" if rings == 4 else f"{rings} rings", int(has_nitrogen)])


def main() -> None:
    """Train one model of all targets and one of each, and print their test scores."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--molecules", type=int, default=700)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "known.csv"
        write_table(path, given.molecules, given.seed)
        kinds = {"rings": "multi-class", "nitrogen": "binary", "logP": "regression"}
        for tasks in (["logP"], ["rings"], ["logP", "rings", "nitrogen"]):
            chosen = {name: kinds[name] for name in tasks}
            data = rgat.data.from_smiles(path, tasks=tasks, task=chosen, seed=given.seed, relaxed=True)
            model = rgat.fit(data, seed=given.seed, descriptors="none")
            report = model.report
            print(f"{', '.join(tasks)}: {report['metric']} on {report['tested']} test molecules")
            print(f"  {model.config['model']:24} {report['scores']['test']:.3f}")
            for row in report["comparison"]:
                print(f"  {row['name']:24} {row['scores'].get('test', float('nan')):.3f}")
            for name, found in report["targets"].items():
                scores = {key: round(value, 3) for key, value in found.items() if isinstance(value, float)}
                print(f"    {name}: {scores}", flush=True)


if __name__ == "__main__":
    main()
