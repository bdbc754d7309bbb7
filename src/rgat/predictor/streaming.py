"""Predict a molecule file of any length in bounded memory: read, parse in worker processes, predict and write batches.

Rows go to a ``.part`` file beside the output, which is renamed at the end. An interrupted run can be resumed.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from os import PathLike
from pathlib import Path
from typing import IO, NamedTuple

import torch

from rgat.checks import check_count
from rgat.data.files import MAX_LINE_BYTES, kind_of, move_into_place, open_lines
from rgat.data.molecules.sdf import SUFFIXES, read_records
from rgat.data.tables import csv_cell, separator_hint
from rgat.locks import locked
from rgat.predictor.ensemble import MoleculeVocabulary
from rgat.predictor.predictions import table_text
from rgat.predictor.predictor import BATCH_SIZE, MoleculeBatch, MoleculePredictor, parse_molecules
from rgat.predictor.uncertainty_text import unbounded_sentences
from rgat.predictor.words import counted
from rgat.progress import Progress, Stages, shown
from rgat.workers import WorkerPool

PREDICTION = "prediction"  # the stage of `rgat predict`


class Streamed(NamedTuple):
    """Counts of a run."""

    molecules: int  # rows in the file
    invalid: int  # invalid SMILES among the rows predicted in this run
    resumed: int  # rows of an earlier run
    unlike: int = 0  # molecules unlike the training data among the rows predicted in this run
    unbounded: tuple[str, ...] = ()  # sentences about intervals that are unbounded

    def sentence(self, out: str | PathLike[str]) -> str:
        """Return what was written, in words."""
        resumed = f", {self.resumed:,} of them resumed" if self.resumed else ""
        bad = f"; invalid SMILES, marked so: {self.invalid:,}" if self.invalid else ""
        far = f"; unlike the training data: {self.unlike:,}" if self.unlike else ""
        return f"{counted(self.molecules, 'molecule')} written to {out}{resumed}{bad}{far}"


def is_file(text: str) -> bool:
    """Return whether a text names a file; a SMILES may be longer than the longest file name."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def predict_file(
    predictor: MoleculePredictor,
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    smiles_column: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    coverage: float | None = None,
    progress: Progress = False,
) -> Streamed:
    """Predict all molecules of a file and write a .csv or .tsv table with one row per molecule, in the same order.

    The file is CSV or TSV with a column of SMILES (by default the one called smiles), or .smi or .txt with one SMILES
    per line, or .sdf; plain or compressed. So many worker processes parse SMILES, by default one per core. With
    ``resume``, an interrupted run continues, whose rows are beside ``out``. The sets and intervals have the
    ``coverage``.
    """
    source, out = Path(source), Path(out)
    if out.suffix not in (".csv", ".tsv"):
        raise ValueError(f"{out}: predictions of molecules must go to a file that ends in .csv or .tsv")
    if out.resolve() == source.resolve():
        raise ValueError(f"{out}: predictions must not overwrite their molecules; name another file")
    if out.is_dir():
        raise ValueError(f"{out}: cannot be written: it is a folder")
    workers = (os.cpu_count() or 1) if workers is None else workers
    check_count("workers", workers)
    with locked(out.with_name(f"{out.name}.part.lock"), str(out)), shown(progress, [PREDICTION]) as stages:
        return _predict_file(predictor, source, out, smiles_column, workers, resume, coverage, stages)


def _predict_file(
    predictor: MoleculePredictor,
    source: Path,
    out: Path,
    smiles_column: str | None,
    workers: int,
    resume: bool,
    coverage: float | None,
    stages: Stages,
) -> Streamed:
    part = out.with_name(f"{out.name}.part")
    header = predictor.predict([], coverage=coverage).header()
    digest_file, digest = out.with_name(f"{out.name}.part.model"), _digest(predictor)
    if resume and part.exists() and (not digest_file.exists() or digest_file.read_text() != digest):
        raise ValueError(f"{part} must be of the same model to be resumed, but another model wrote it; remove it")
    done, last_smiles = _resume(part, header, resume)
    total = sum(1 for _ in read_smiles(source, smiles_column))
    if total == 0:
        raise ValueError(f"{source}: must hold at least one molecule, got none")
    rows = read_smiles(source, smiles_column)
    skipped = deque(itertools.islice(rows, done), maxlen=1)
    if done and (not skipped or csv_cell(skipped[0]) != last_smiles):
        raise ValueError(f"{part} must be of the same molecule file, but row {done} differs; remove it")
    predicted = invalid = unlike = 0
    unbounded: list[str] = []
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        digest_file.write_text(digest)
        with part.open("a", encoding="utf-8", newline="") as file:
            if part.stat().st_size == 0:
                file.write(table_text([header], out))
            for smiles, batch in _parsed(rows, workers, predictor.vocabulary):
                predictions = predictor.predict_parsed(smiles, batch, coverage)
                file.write(table_text(predictions.rows(), out))
                file.flush()
                predicted, invalid = predicted + len(smiles), invalid + len(smiles) - len(batch.valid)
                unlike += sum(map(bool, predictions.warnings))
                unbounded = unbounded or unbounded_sentences(predictions)
                so_far = done + predicted
                stages(PREDICTION, so_far / total, f"{so_far:,} of {total:,} molecules", so_far, "molecules")
        move_into_place(part, out)
        digest_file.unlink()
    except BrokenProcessPool as error:
        raise ValueError(
            "worker processes must stay alive, but one ended: it ran out of memory, or it was started by a script "
            'without `if __name__ == "__main__":`; the run can be resumed'
        ) from error
    except OSError as error:
        raise ValueError(f"{out}: cannot be written: {error.strerror}; make room, then resume") from error
    return Streamed(done + predicted, invalid, done, unlike, tuple(unbounded))


def _digest(predictor: MoleculePredictor) -> str:
    """Return a hash of the tasks, the calibration and all parameters."""
    digest = hashlib.sha256(repr((predictor.tasks, predictor.calibration)).encode())
    if (described := predictor.vocabulary.descriptors) is not None:
        digest.update(repr((described.kind, described.mean.tolist(), described.scale.tolist())).encode())
    for member in predictor.members:
        for tensor in member.state_dict().values():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def refuse_column(path: Path, column: str | None) -> None:
    """Raise if a column is named for a file without columns of SMILES."""
    if column is not None:
        raise ValueError(f"{path}: has no columns, so `smiles_column` (--smiles-column) must be left out")


def read_smiles(path: Path, column: str | None = None) -> Iterator[str]:
    """Yield the SMILES of a file."""
    try:
        with open_lines(path) as file:
            suffix = kind_of(path)
            if suffix in SUFFIXES:
                refuse_column(path, column)
                yield from (record.smiles for record in read_records(path))
                return
            if suffix in (".smi", ".txt"):
                refuse_column(path, column)
                yield from (words[0] if (words := line.split()) else "" for line in file)
                return
            reader = csv.reader(file, delimiter="\t" if suffix == ".tsv" else ",", strict=True)
            header = [name.strip() for name in next(reader, [])]
            columns = [name for name in header if name == column or (column is None and name.lower() == "smiles")]
            if len(columns) != 1:
                raise ValueError(
                    f"{path}: one column must be called {column or 'smiles'}, got {', '.join(header)}; "
                    f"name it: `smiles_column` (--smiles-column){separator_hint(header)}"
                )
            index = header.index(columns[0])
            for row in reader:
                if row and len(row) <= index:
                    raise ValueError(f"{path}, line {reader.line_num}: must have {len(header)} fields, got {len(row)}")
                if row:
                    yield row[index].strip()
    except (csv.Error, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _resume(part: Path, header: Sequence[str], resume: bool) -> tuple[int, str]:
    """Return the number of rows in an unfinished table and the SMILES of the last; remove what is behind whole batches.

    So batches stay those of a run that is not interrupted, and no number is rounded otherwise.
    """
    if not part.exists():
        return 0, ""
    if not resume:
        raise ValueError(f"{part} is left over from an interrupted run; resume it (--resume), or remove it")
    columns = [csv_cell(name) for name in header]
    count, kept, end, smiles = -1, 0, 0, ""
    with part.open("r+b") as file:
        for row, row_end in _complete_rows(file, "\t" if part.with_suffix("").suffix == ".tsv" else ","):
            if count < 0 and row != columns:
                raise ValueError(f"{part} must be of the same model and coverage, but its columns differ; remove it")
            if len(row) != len(columns):
                break
            count += 1
            if count % BATCH_SIZE == 0:
                kept, end, smiles = count, row_end, row[0]
        file.truncate(end)
    return kept, smiles


def _complete_rows(file: IO[bytes], delimiter: str) -> Iterator[tuple[list[str], int]]:
    """Yield each row of a table with the file position of its end, up to a truncated row."""
    csv.field_size_limit(MAX_LINE_BYTES)  # lines of molecule files may be as long
    end = 0

    def lines() -> Iterator[str]:
        nonlocal end
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield line.decode()

    try:
        for row in csv.reader(lines(), delimiter=delimiter, strict=True):
            yield row, end
    except (csv.Error, UnicodeDecodeError):  # an unclosed quote, or a truncated character
        return


def _parsed(
    rows: Iterator[str], workers: int, vocabulary: MoleculeVocabulary
) -> Iterator[tuple[list[str], MoleculeBatch]]:
    """Yield batches in the order of the file, parsed in worker processes; few are in memory at a time."""
    pending: deque[tuple[list[str], Future[MoleculeBatch]]] = deque()
    with WorkerPool(workers, torch.set_num_threads, 1) as pool:
        while smiles := list(itertools.islice(rows, BATCH_SIZE)):
            pending.append((smiles, pool.submit(parse_molecules, smiles, *vocabulary.reading)))
            if len(pending) > 2 * workers:
                first, future = pending.popleft()
                yield first, future.result()
        for smiles, future in pending:
            yield smiles, future.result()
