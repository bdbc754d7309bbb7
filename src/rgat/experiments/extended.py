"""The protocol of the extended space: prune, search all models by successive halving, declare, then run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rgat.baselines import DETERMINISTIC
from rgat.baselines.classic import NUM_TREES
from rgat.baselines.min_max import COSTS, ITERATIONS, MOST_NODES
from rgat.baselines.svm import labelled, scipy_sparse, sklearn_svm
from rgat.data import GraphData, NodeData
from rgat.experiments.declaration import declare, digest, retraining
from rgat.experiments.inputs import base_relations, feature_groups
from rgat.experiments.protocol import Protocol
from rgat.experiments.records import Record, record_name
from rgat.experiments.request import (
    BATCH_SIZE,
    CANDIDATES,
    ENSEMBLE,
    FOREST,
    KERNEL,
    PRUNING,
    SELECTED,
    STACK,
    WITHOUT_LITERALS,
    Request,
)
from rgat.experiments.units import Unit
from rgat.training.configuration import DEFAULTS, VARIANTS, task_of
from rgat.training.halving import STEP, finalists, merge, promotions, propose_step
from rgat.training.search import select
from rgat.training.space import (
    DESCRIPTORS,
    EXTENDED,
    MAX_DEGREE,
    NUM_PRUNED,
    Space,
    input_space,
    to_config,
)

# Folds that each rung adds, by task; nodes have three draws of five folds.
RUNGS: dict[str, tuple[range, ...]] = {
    "node": (range(2), range(2, 5), range(5, 15)),
    "graph": (range(1), range(1, 2), range(2, 4)),
}
MOST_PRUNED = 60  # relations whose removal is tried
PRUNING_SHARE = 0.2  # of the minutes of a search, at most
_CHOICE = {  # by which the settings of a candidate beside the models are chosen
    FOREST: "nothing: the settings are given",
    KERNEL: "cross-validation on the training part, in each run",
}


def extended_units(
    protocol: Protocol, records: Sequence[Record], search_only: bool, minutes_spent: float
) -> list[Unit]:
    """Return the units that can run now: a step of the search, the candidate, the declaration, or final runs."""
    declarations = [record for record in records if record["kind"] == "declaration"]
    existing = {record_name(record) for record in records}
    if declarations:
        units = [] if search_only else _final_units(protocol, declarations[0])
        return [unit for unit in units if record_name(unit) not in existing]
    trials = [record for record in records if record["kind"] == "trial" and record["model"] == SELECTED]
    if protocol.request.minutes is None or minutes_spent < protocol.request.minutes:
        pruning = [record for record in records if record["model"] == PRUNING]
        units = [] if trials else _pruning_units(protocol, minutes_spent)
        units = [unit for unit in units if record_name(unit) not in existing]
        units = units or _search_units(protocol, trials, pruning)
        if units:
            return units
    if search_only:
        return []
    name = _candidate(protocol)
    candidate = next((record for record in records if record["kind"] == "trial" and record["model"] == name), None)
    if trials and candidate is None and name is not None:
        return [_candidate_unit(protocol, name)]
    return [_declaration_unit(protocol, trials, candidate)]


def check_libraries(protocol: Protocol, records: Sequence[Record]) -> None:
    """Raise an error before a search takes its time, if what comes after it needs a library that is missing here."""
    declared = next((record["declared"] for record in records if record["kind"] == "declaration"), None)
    if declared is None:
        is_needed = _candidate(protocol) is not None
    else:
        is_needed = any(key in declared for key in CANDIDATES.values())
    if is_needed:
        sklearn_svm()
        scipy_sparse()


def minutes_spent(records: Sequence[Record]) -> float:
    """Return the minutes of the machine that a search took by its records; workers share them.

    What is trained after a search does not count.
    """
    trials = [record for record in records if record["kind"] == "trial" and record["model"] not in CANDIDATES]
    seconds: list[float] = [record["seconds"] / record.get("workers", 1) for record in trials]
    return sum(seconds) / 60


def minutes_of(request: Request, unit: Unit) -> float | None:
    """Return the minutes after which units like this one are stopped; None: there is no limit."""
    if request.minutes is None or unit["kind"] != "trial" or unit["model"] in CANDIDATES:
        return None
    return request.minutes * (PRUNING_SHARE if unit["model"] == PRUNING else 1.0)


def rungs_of(request: Request) -> list[list[int]]:
    """Return the folds that each rung adds, of the request's number of folds."""
    rungs = [[fold for fold in rung if fold < request.folds] for rung in RUNGS[request.task]]
    return [rung for rung in rungs if rung]


def whole_space(data: NodeData | GraphData, relations: bool = True) -> Space:
    """Return the options that are searched on these data, with ``relations`` to prune or without."""
    space = EXTENDED[task_of(data)] | input_space(list(feature_groups(data)))
    if isinstance(data, NodeData):
        space |= {"max_degree": MAX_DEGREE} | ({"num_pruned": NUM_PRUNED} if relations else {})
    elif data.graphs.graph_attr is not None:
        space |= {"descriptors": DESCRIPTORS}
    return space


def _limits(request: Request) -> dict[str, Any]:
    batch = {"batch_size": BATCH_SIZE} if request.task == "graph" else {}
    return {"max_epochs": request.max_epochs, "patience": request.patience} | batch


def _pruning_units(protocol: Protocol, minutes: float) -> list[Unit]:
    """Return trainings of one setting with all relations, and without each; none where there is nothing to choose."""
    request, data = protocol.request, protocol.folded.data
    relations = base_relations(data)[:MOST_PRUNED] if isinstance(data, NodeData) else []
    if len(relations) < 2 or (request.minutes is not None and minutes >= PRUNING_SHARE * request.minutes):
        return []
    default = {name: value for name, value in DEFAULTS["node"].items() if name != "model"}
    config = VARIANTS[DEFAULTS["node"]["model"]] | default | _limits(request)
    folds = [fold for rung in rungs_of(request)[:2] for fold in rung]
    return [
        protocol.unit("trial", PRUNING, config | {"pruned_relations": pruned}, trial=number, folds=folds)
        for number, pruned in enumerate([[], *([name] for name in relations)])
    ]


def ranked_relations(pruning: Sequence[Record]) -> list[str]:
    """Return the relations without which the validation folds score better, the best to leave out first."""
    done = [record for record in pruning if record["status"] == "done"]
    whole = [record for record in done if not record["config"]["pruned_relations"]]
    if not whole:
        return []
    order = sorted((-record["objective"], record["tie_breaker"], record["trial"], record) for record in done)
    ranked = [record for *_, record in order]
    return [record["config"]["pruned_relations"][0] for record in ranked[: ranked.index(whole[0])]]


def _search_units(protocol: Protocol, trials: Sequence[Record], pruning: Sequence[Record]) -> list[Unit]:
    """Return what is left of the first unfinished step; none if the search is finished.

    A step is determined by the records of the steps before it: the trials that go on to a next rung, and new ones.
    """
    request = protocol.request
    for step in itertools.count():
        begun = [record for record in trials if record["round"] == step]
        if not begun or len(begun) < begun[0]["step_size"]:
            break
    earlier = merge([record for record in trials if record["round"] < step])
    if earlier and all(trial["status"] == "failed" for trial in earlier):
        select(earlier)  # raises with the reasons; more trials would fail as well
    rungs, relations = rungs_of(request), ranked_relations(pruning)
    units = [
        _trial_unit(protocol, trial["trial"], trial["options"], _rung_config(request, trial, rung), rung, step)
        for trial, rung in promotions(earlier, len(rungs))
    ]
    space = whole_space(protocol.folded.data, bool(relations))
    count = min(STEP, request.trials - len(earlier))
    proposed = propose_step(space, request.search_seed, step, earlier, count) if count else []
    for number, options in enumerate(proposed, len(earlier)):
        config = to_config(options) | _limits(request)
        if "num_pruned" in options:
            config["pruned_relations"] = relations[: options["num_pruned"]]
        units.append(_trial_unit(protocol, number, options, config, 0, step))
    existing = {record_name(record) for record in trials}
    return [unit | {"step_size": len(units)} for unit in units if record_name(unit) not in existing]


def _rung_config(request: Request, trial: Record, rung: int) -> dict[str, Any]:
    """Return the configuration of a trial at a rung: the last one of nodes rehearses the final training."""
    config: dict[str, Any] = trial["config"]
    return config | retraining(trial["folds"]) if _is_rehearsal(request, rung) else config


def _is_rehearsal(request: Request, rung: int) -> bool:
    return request.task == "node" and rung == len(RUNGS["node"]) - 1


def _trial_unit(
    protocol: Protocol, trial: int, options: dict[str, Any], config: dict[str, Any], rung: int, step: int
) -> Unit:
    request = protocol.request
    about = {"trial": trial, "rung": rung, "round": step, "from_prior": step == 0, "options": options}
    if request.task == "node":
        about |= {"common_epoch": True, "rehearsal": _is_rehearsal(request, rung)}
    return protocol.unit("trial", SELECTED, config, **about, folds=rungs_of(request)[rung])


def _candidate(protocol: Protocol) -> str | None:
    """Return what may join the ensemble beside models of the graph; requests made before it existed do not list it.

    For molecules with descriptors it is a forest of these, for nodes that are not too many a kernel on what surrounds
    them.
    """
    data = protocol.folded.data
    if isinstance(data, NodeData):
        is_possible, name = len(labelled(data)) <= MOST_NODES, KERNEL
    else:
        is_possible, name = data.graphs.graph_attr is not None, FOREST
    return name if is_possible and name in protocol.request.models else None


def _candidate_unit(protocol: Protocol, name: str) -> Unit:
    """Return the training of the candidate on all folds."""
    folds = [fold for rung in rungs_of(protocol.request) for fold in rung]
    config = {"num_trees": NUM_TREES} if name == FOREST else {"iterations": list(ITERATIONS), "costs": list(COSTS)}
    return protocol.unit("trial", name, config, trial=0, rung=0, folds=folds)


def _declaration_unit(protocol: Protocol, trials: Sequence[Record], candidate: Record | None) -> Unit:
    if candidate is not None and candidate["status"] != "done":
        raise ValueError(
            f"the {candidate['model']} must be trained before the ensemble is declared, but failed "
            f"({candidate['error']}); mend that, delete records/{record_name(candidate)} in {protocol.folder} "
            "and start again"
        )
    declared = declare(protocol.folded, trials, candidate)
    return protocol.unit("declaration", SELECTED, {}, declared=declared, sha256=digest(declared))


def _final_units(protocol: Protocol, declaration: Record) -> list[Unit]:
    """Return the runs of the selected model, of the ensemble and, beside literals, of the model without them."""
    request, declared = protocol.request, declaration["declared"]
    if digest(declared) != declaration["sha256"]:
        raise ValueError(f"the declaration in {protocol.folder} must be as it was written, but has changed; restore it")
    metric = "accuracy" if request.task == "node" else "ROC-AUC"
    rule = f"by mean validation {metric} over {len(declared['folds'])} folds without test data"
    best = declared["selected"]
    sentence = f"trial {best['trial']} of {declared['trials']}, {rule} ({best['objective']:.4f})"
    members = declared["members"]
    chosen = ", ".join(CANDIDATES.get(member.get("model"), str(member["trial"])) for member in members)
    rows: dict[str, dict[str, Any]] = {
        SELECTED: {"config": best["config"], "selected_on": sentence},
        ENSEMBLE: {
            "config": {},
            "members": members,
            "selected_on": f"trials {chosen}, chosen greedily {rule} ({declared['ensemble_objective']:.4f})",
        },
    }
    for name, key in CANDIDATES.items():
        if key in declared:
            rows[name] = {"config": declared[key]["config"], "selected_on": _CHOICE[name]}
    if "without_literals" in declared:
        rows[WITHOUT_LITERALS] = {"config": declared["without_literals"], "selected_on": f"{sentence}, with literals"}
    seeds = range(request.seeds)
    stacks = {seed: list(seeds[seed // STACK * STACK :][:STACK]) for seed in seeds if request.task == "node"}
    return [
        protocol.unit(
            "run",
            model,
            split=split,
            seed=seed,
            stack=None if model in CANDIDATES else stacks.get(seed),
            declaration=declaration["sha256"],
            **about,
        )
        for model, about in rows.items()
        for split in protocol.folded.splits
        for seed in (seeds[:1] if model in DETERMINISTIC else seeds)
    ]


def describe_search(records: Sequence[Record]) -> list[str]:
    """Return sentences that say what was tried and what is best on the folds."""
    pruning = [record for record in records if record["model"] == PRUNING]
    trials = merge([r for r in records if r["kind"] == "trial" and r["model"] == SELECTED])
    if not trials:
        return ["no trial has finished; give more --minutes"]
    best = select(finalists(trials) or trials)
    counts = [sum(trial["rung"] >= rung for trial in trials) for rung in range(best["rung"] + 1)]
    lines = [
        f"tried {len(trials)} configurations; {', '.join(map(str, counts))} reached rungs 0 to {best['rung']}; "
        f"{sum(trial['status'] != 'done' for trial in trials)} failed or diverged"
    ]
    if pruning:
        names = ranked_relations(pruning)
        lines.append(f"tried {len(pruning) - 1} relations to prune; {len(names)} score better without")
    return [
        *lines,
        f"best: trial {best['trial']}, {best['objective']:.4f} on {len(best['folds'])} validation folds; no test data "
        "were used",
    ]
