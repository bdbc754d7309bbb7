"""Tables of a search in the extended space: final runs, members of the ensemble, and what was declared before them."""

from __future__ import annotations

from collections.abc import Sequence

from rgat.experiments.declaration import MEMBERS, digest, digest_trials
from rgat.experiments.records import Record
from rgat.experiments.request import CANDIDATES, ENSEMBLE, PRUNING, SELECTED, WITHOUT_LITERALS
from rgat.report.formats import EMPTY, Cell, Column, Line, ReportTable
from rgat.report.studies import ModelRow, Study
from rgat.report.tables import MEAN, count_cell, half_width_cell, mean_cell, option_cell, option_line

READING = (
    "These rows are not the paper's: one search over all models, with options that the paper does not have "
    "(docs/protocol.md). The selected model and the ensemble were chosen on validation folds and declared before any "
    "final run; each final run carries the digest of the declaration. A run looks at its test part once, so n is the "
    "number of looks. Device minutes count the time of parallel workers once."
)


def device_minutes(records: Sequence[Record]) -> float:
    """Return the minutes that the records took on their machine; parallel workers share them."""
    return sum((record.get("seconds") or 0.0) / (record.get("workers") or 1) for record in records) / 60


def rows(study: Study) -> ReportTable | None:
    """Return the scores of the final runs; None without any."""
    if not study.rows:
        return None
    objectives: dict[str, float] = {}
    for declared in (declaration["declared"] for declaration in study.declarations):
        objectives = {SELECTED: declared["selected"]["objective"], ENSEMBLE: declared["ensemble_objective"]}
        objectives |= {name: declared[key]["objective"] for name, key in CANDIDATES.items() if key in declared}
    lines = []
    for row in _rows(study):
        objective = objectives.get(row.model)
        lines.append(
            Line(
                [
                    Cell(row.model),
                    mean_cell(study, row.scores()),
                    count_cell(len(row.scores())),
                    *(half_width_cell(study, value) for value in study.half_widths(row)),
                    EMPTY if objective is None else Cell(study.number(objective), (objective,)),
                    Cell(f"{device_minutes(row.runs):.1f}", (device_minutes(row.runs),)),
                ],
                model=row.model,
            )
        )
    titles = ("n", "± seeds", "± seeds, examples", "validation folds", "device minutes")
    columns = [Column("Row", text=True), Column("Test", MEAN), *map(Column, titles)]
    unit = "in %" if study.percent else "as a fraction"
    notes = [
        f"Mean ± standard deviation of the test {study.metric}, {unit}, over n runs, with half widths of 95 % "
        "intervals of the mean; validation folds: the score there, which is optimistic where the row was chosen by it."
    ]
    return ReportTable(f"{study.key}-scores", f"{study.title}: {study.metric}", columns, lines, notes)


def _rows(study: Study) -> list[ModelRow]:
    """Return the rows with attention, the selected model first and the ensemble last."""
    order = {model: number for number, model in enumerate((SELECTED, WITHOUT_LITERALS, *CANDIDATES, ENSEMBLE))}
    rows = [row for row in study.rows if not row.constant]
    return sorted(rows, key=lambda row: order.get(row.model, len(order)))


def members(study: Study) -> ReportTable | None:
    """Return the options of the ensemble's members; None before they are declared."""
    if not study.declarations:
        return None
    chosen = study.declarations[0]["declared"]["members"]
    options = sorted({option for member in chosen for option in member["config"]})
    lines = [option_line(name, [option_cell(member["config"].get(name)) for member in chosen]) for name in options]
    names = [CANDIDATES.get(member.get("model"), f"trial {member['trial']}") for member in chosen]
    columns = [Column("Option", text=True), *map(Column, names)]
    return ReportTable(f"{study.key}-members", f"{study.title}: members of the ensemble", columns, lines, folded=True)


def describe(study: Study) -> list[str]:
    """Return sentences on the search, the declaration, the looks at the test part and the cost."""
    trials = [trial for trial in study.trials if trial["model"] == SELECTED]
    pruning = [trial for trial in study.trials if trial["model"] == PRUNING]
    first = [trial for trial in trials if not trial.get("rung")]
    lost = sum(trial["status"] != "done" for trial in trials)
    minutes = device_minutes([*pruning, *trials])
    beside = [trial for trial in study.trials if trial["model"] in CANDIDATES]
    removed = f" after {len(pruning)} trainings that each leave out one relation or none" if pruning else ""
    sentences = [
        f"The search tried {len(first)} configurations{removed}, in {len(trials)} trainings on validation folds, of "
        f"which {lost} failed or diverged: {minutes:.1f} device minutes."
    ]
    sentences += [
        f"The {trial['model']} took {(trial.get('seconds') or 0) / 60:.1f} minutes of one process on the folds."
        for trial in beside
    ]
    if not study.declarations:
        return [*sentences, "Nothing is declared yet, so there are no final runs."]
    declaration = study.declarations[0]
    declared = declaration["declared"]
    counts = ", ".join(map(str, declared["by_rung"]))
    others = "".join(f" and the {name}" for name, key in CANDIDATES.items() if key in declared)
    sentences.append(
        f"Selection rule: successive halving, in which {counts} configurations reached the rungs; the best mean "
        f"validation {study.metric} over {len(declared['folds'])} folds selects the model, and {MEMBERS} greedy "
        f"choices with replacement among the configurations at the last rung{others} the ensemble, by the same folds."
    )
    return [*sentences, _checked(study, declaration, trials), _looks(study)]


def _checked(study: Study, declaration: Record, trials: Sequence[Record]) -> str:
    """Say whether the final runs follow the declaration, and the declaration the trials."""
    sha = declaration.get("sha256")
    problems = []
    if len(study.declarations) > 1 or sha != digest(declaration["declared"]):
        problems.append("it is not as it was written")
    if any(run.get("declaration") != sha for run in study.runs):
        problems.append("some runs do not carry its digest")
    declared = [name for name, key in CANDIDATES.items() if key in declaration["declared"]]
    beside = [trial for trial in study.trials if trial["model"] in declared]
    if digest_trials([*trials, *beside]) != declaration["declared"]["trials_sha256"]:
        problems.append("it was made from other trials than those found")
    start = f"Declaration {str(sha)[:12]}"
    if problems:
        return f"{start} cannot be confirmed: {'; '.join(problems)}."
    return f"{start} is confirmed: it matches the trials found, and all {len(study.runs)} final runs carry its digest."


def _looks(study: Study) -> str:
    counts = [f"{row.model} {len(row.runs)}" for row in _rows(study)]
    lost = sum(run["status"] != "done" for run in study.runs)
    failed = f"; {lost} runs failed or diverged" if lost else ""
    return f"Looks at the test part: {', '.join(counts)}{failed}; {device_minutes(study.runs):.1f} device minutes."
