"""SDF files: molecules with named properties, read record by record, as a table with a column of SMILES."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rgat.data.files import open_lines
from rgat.data.molecules.smiles import rdkit
from rgat.data.tables import Table

SUFFIXES = (".sdf", ".sd")
MAX_RECORD = 4_000_000  # characters; a longer one is no small molecule
_PROPERTY = re.compile(r"^>.*<(?P<name>[^>]*)>")


class Record(NamedTuple):
    """One molecule of an SDF file."""

    smiles: str  # empty if RDKit cannot read the structure
    properties: dict[str, str]
    line: int  # where it starts


def read_sdf(path: Path) -> Table:
    """Read all records as a table: the column smiles is the structure, the others are the properties.

    A property called smiles is left out: the structure counts.
    """
    names: dict[str, int] = {}
    records = []
    for record in read_records(path):
        for name in record.properties:
            if name.lower() != "smiles":
                names.setdefault(name, len(names))
        records.append(record)
    if not records:
        raise ValueError(f"{path}: must hold at least one molecule, got none")
    rows = [[record.smiles, *(record.properties.get(name, "") for name in names)] for record in records]
    return Table(path, ("smiles", *names), rows, [record.line for record in records])


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of an SDF file, plain or compressed, one in memory at a time."""
    lines: list[str] = []
    size, start = 0, 1
    try:
        with open_lines(path) as file:
            for number, line in enumerate(file, start=1):
                if line.startswith("$$$$"):
                    yield _record(lines, start)
                    lines, size, start = [], 0, number + 1
                    continue
                lines.append(line.rstrip("\n"))
                size += len(line)
                if size > MAX_RECORD:
                    raise ValueError(
                        f"{path}, line {start}: a record must end with $$$$ within {MAX_RECORD:,} characters, and does "
                        "not; check that it is an SDF file"
                    )
            if any(line.strip() for line in lines):
                yield _record(lines, start)  # the last one may lack its end
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be UTF-8 text, got other bytes near byte {error.start}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _record(lines: list[str], start: int) -> Record:
    chem = rdkit()
    end = next((i for i, line in enumerate(lines) if line.startswith("M  END")), len(lines) - 1) + 1
    molecule = chem.MolFromMolBlock("\n".join(lines[:end]) + "\n")
    smiles = "" if molecule is None else chem.MolToSmiles(molecule)
    properties: dict[str, list[str]] = {}
    values: list[str] | None = None
    for line in lines[end:]:
        if found := _PROPERTY.match(line):
            values = properties.setdefault(found["name"].strip(), [])
        elif not line.strip():
            values = None
        elif values is not None:
            values.append(line)
    return Record(smiles, {name: "\n".join(text).strip() for name, text in properties.items()}, start)
