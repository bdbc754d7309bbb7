"""Judge a file of molecules of any length in bounded memory: read, parse in worker processes, judge, write, in pieces.

The rows go to a file beside the wanted one, which takes its place at the end. What was interrupted can be resumed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from rgat.checks import check_count
from rgat.data.cells import csv_cell
from rgat.data.files import LONGEST, kind_of, open_lines
from rgat.data.labels import separator_hint
from rgat.data.molecules.smiles import parse_smiles, store_molecules
from rgat.graph import RelationalGraph
from rgat.locks import locked
from rgat.predictor.predictions import Predictions, table_text
from rgat.predictor.predictor import GraphModel
from rgat.training.progress import Progress, no_progress
from rgat.workers import WorkerPool

PIECE = 512  # molecules judged at once: more would not be faster


class Streamed(NamedTuple):
    """What was done."""

    molecules: int  # rows in the file
    unreadable: int  # of those judged now
    resumed: int  # rows that were there already


class Piece(NamedTuple):
    """Molecules as a worker hands them over; atom features are small whole numbers."""

    good: list[int]  # places of those that could be read
    x: Any
    edges: Any  # source, target, relation
    sizes: Any  # atoms of each


def predict_file(
    fitted: GraphModel,
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    smiles_column: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    progress: Progress = no_progress,
) -> Streamed:
    """Judge all molecules of a file and write a table of as many rows, in the same order.

    Args:
        fitted: the model.
        source: CSV or TSV with a column of SMILES, or .smi or .txt with one SMILES per line; plain or compressed.
        out: a .csv or .tsv file.
        smiles_column: by default the column called smiles.
        workers: processes that parse; by default one per core.
        resume: go on with what an interrupted run has left beside ``out``.
        progress: called with the share that is done.
    """
    source, out = Path(source), Path(out)
    if out.suffix not in (".csv", ".tsv"):
        raise ValueError(f"{out}: predictions of molecules must go to a file that ends in .csv or .tsv")
    if out.resolve() == source.resolve():
        raise ValueError(f"{out}: predictions must not take the place of their molecules; name another file")
    if out.is_dir():
        raise ValueError(f"{out}: cannot be written: it is a folder")
    workers = (os.cpu_count() or 1) if workers is None else workers
    check_count("workers", workers)
    with locked(out.with_name(f"{out.name}.part.lock"), str(out)):
        return _predict_file(fitted, source, out, smiles_column, workers, resume, progress)


def _predict_file(
    fitted: GraphModel,
    source: Path,
    out: Path,
    smiles_column: str | None,
    workers: int,
    resume: bool,
    progress: Progress,
) -> Streamed:
    part = out.with_name(f"{out.name}.part")
    header = Predictions((), fitted.tasks, np.empty((0, 0)), np.empty((0, 0)), exclusive=False).header()
    mark, digest = out.with_name(f"{out.name}.part.model"), _digest(fitted)
    if resume and part.exists() and (not mark.exists() or mark.read_text() != digest):
        raise ValueError(f"{part} must be of the same model to go on with it, but another one began it; remove it")
    done = _resume(part, header, resume)
    total = sum(1 for _ in read_smiles(source, smiles_column))
    if total == 0:
        raise ValueError(f"{source}: must hold at least one molecule, got none")
    rows = read_smiles(source, smiles_column)
    _skip(rows, done, part)
    judged = unreadable = 0
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(digest)
        with part.open("a", encoding="utf-8", newline="") as file:
            if part.stat().st_size == 0:
                file.write(table_text([header], out))
            for texts, piece in _parsed(rows, workers, fitted.self_loops):
                predictions = _judge(fitted, texts, piece)
                file.write(table_text(predictions.rows(), out))
                file.flush()
                judged, unreadable = judged + len(texts), unreadable + len(texts) - len(piece.good)
                progress("molecules", (done + judged) / total)
        os.replace(part, out)
        mark.unlink()
    except BrokenProcessPool as error:
        raise ValueError(
            "worker processes must stay alive, but one ended: out of memory, or started by a script whose work does "
            'not stand under `if __name__ == "__main__":`; what is done can be resumed'
        ) from error
    except OSError as error:
        raise ValueError(f"{out}: cannot be written: {error.strerror}; resume when there is room") from error
    return Streamed(done + judged, unreadable, done)


def _digest(fitted: GraphModel) -> str:
    """What tells one model from another."""
    digest = hashlib.sha256(repr((fitted.tasks, fitted.calibration)).encode())
    for member in fitted.members:
        for tensor in member.state_dict().values():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def read_smiles(path: Path, column: str | None = None) -> Iterator[str]:
    """The SMILES of a file, one after the other."""
    try:
        with open_lines(path) as file:
            kind = kind_of(path)
            if kind in (".smi", ".txt"):
                if column is not None:
                    raise ValueError(f"{path}: has no columns, so `smiles_column` (--smiles-column) must be left out")
                yield from (words[0] if (words := line.split()) else "" for line in file)
                return
            reader = csv.reader(file, delimiter="\t" if kind == ".tsv" else ",", strict=True)
            header = [name.strip() for name in next(reader, [])]
            wanted = [name for name in header if name == column or (column is None and name.lower() == "smiles")]
            if len(wanted) != 1:
                raise ValueError(
                    f"{path}: one column must be called {column or 'smiles'}, got {', '.join(header)}; "
                    f"name it: `smiles_column` (--smiles-column){separator_hint(header)}"
                )
            place = header.index(wanted[0])
            for row in reader:
                if row and len(row) <= place:
                    raise ValueError(f"{path}, line {reader.line_num}: must have {len(header)} fields, got {len(row)}")
                if row:
                    yield row[place].strip()
    except (csv.Error, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _resume(part: Path, header: Sequence[str], resume: bool) -> int:
    """How many rows are there already; a row that was cut off is taken away."""
    if not part.exists():
        return 0
    if not resume:
        raise ValueError(f"{part} is left of an interrupted run; resume it (--resume), or remove it")
    text = table_text([header], part.with_suffix("")).encode()
    ((columns, _),) = _whole_rows(io.BytesIO(text), part)  # as they are written
    with part.open("r+b") as file:
        count, end = -1, 0
        for row, place in _whole_rows(file, part):
            if count < 0 and row != columns:
                raise ValueError(f"{part} must be of the same model, but its columns differ; remove it")
            if len(row) != len(columns):
                break
            count, end = count + 1, place
        file.truncate(end)
    return max(count, 0)


def _whole_rows(file: IO[bytes], part: Path) -> Iterator[tuple[list[str], int]]:
    """The rows of a table up to one that was cut off, each with the number of bytes up to its end."""
    csv.field_size_limit(LONGEST)  # a molecule file may have as long a line
    end = 0

    def lines() -> Iterator[str]:
        nonlocal end
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield line.decode()

    try:
        for row in csv.reader(lines(), delimiter=_delimiter(part), strict=True):
            yield row, end
    except (csv.Error, UnicodeDecodeError):  # a quoted cell that never ends, or half a letter
        return


def _delimiter(part: Path) -> str:
    return "\t" if part.with_suffix("").suffix == ".tsv" else ","


def _skip(rows: Iterator[str], done: int, part: Path) -> None:
    """Pass over the rows that were judged; the last of them must be the one that was written."""
    last = deque(itertools.islice(rows, done), maxlen=1)
    if not done:
        return
    with part.open(encoding="utf-8", newline="") as file:
        written = deque(csv.reader(file, delimiter=_delimiter(part)), maxlen=1)[0][0]
    if not last or csv_cell(last[0]) != written:
        raise ValueError(f"{part} must be of the same file of molecules, but row {done} is another one; remove it")


def _parsed(rows: Iterator[str], workers: int, self_loops: bool) -> Iterator[tuple[list[str], Piece]]:
    """Pieces in the order of the file; at any time only a few are on their way."""
    waiting: deque[tuple[list[str], Future[Piece]]] = deque()
    with WorkerPool(workers, torch.set_num_threads, 1) as pool:
        while texts := list(itertools.islice(rows, PIECE)):
            waiting.append((texts, pool.submit(parse, texts, self_loops)))
            if len(waiting) > 2 * workers:
                first, future = waiting.popleft()
                yield first, future.result()
        for texts, future in waiting:
            yield texts, future.result()


def parse(texts: Sequence[str], self_loops: bool) -> Piece:
    """Molecules to arrays; runs in a worker."""
    molecules = [parse_smiles(text, relaxed=True) if text else None for text in texts]
    good = [place for place, molecule in enumerate(molecules) if molecule is not None]
    store = store_molecules([molecules[place] for place in good], self_loops)
    edges = torch.cat([store.edge_index, store.edge_type.unsqueeze(0)]).int()
    return Piece(good, store.x.to(torch.int8).numpy(), edges.numpy(), store.node_ptr.diff().int().numpy())


def _judge(fitted: GraphModel, texts: Sequence[str], piece: Piece) -> Predictions:
    chance = np.full((2, len(texts), len(fitted.tasks)), np.nan)
    if piece.good:
        edges = torch.from_numpy(piece.edges).long()
        sizes = torch.from_numpy(piece.sizes).long()
        graph = RelationalGraph(
            edges[:2],
            edges[2],
            num_nodes=len(piece.x),
            num_relations=len(fitted.relation_names),
            batch=torch.arange(len(sizes)).repeat_interleave(sizes),
            num_graphs=len(sizes),
            validate=False,
        )
        chance[:, piece.good] = fitted.judge(torch.from_numpy(piece.x).float(), graph)
    return Predictions(tuple(texts), fitted.tasks, chance[0], chance[1], exclusive=False)
