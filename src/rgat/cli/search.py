"""`rgat search`: search hyper-parameters."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from rgat.cli.options import grouped, required_data
from rgat.cli.printing import print_line, print_table
from rgat.cli.reproduce import ExecutionOptions, FileOptions, PlanOptions, plan_keys, print_search, run_plan


@grouped
def search(
    plan: PlanOptions,
    files: FileOptions,
    execution: ExecutionOptions,
    priors: Annotated[bool, Option("--priors", help="Only print the priors.")] = False,
) -> None:
    """Search hyper-parameters: the paper's priors, or a wider space.

    \b
    Examples:
      rgat search aifb --priors                     print the paper's priors
      rgat search institute --budget smoke          3 trials per model
      rgat search aifb --models RGCN --trials 50    one model
      rgat search aifb --minutes 10                 all models, extended space
    """
    if priors:
        _print_priors(required_data(plan.data), plan.space)
        return
    folder, records = run_plan(plan_keys(plan), files, execution, search_only=True)
    if records and not print_search(records):
        print_table(("model", "trials", "not done", "best", "trial"), _rows(records))
    if records:
        print_line(f"Records are in {folder}.")
    elif not files.propose:
        print_line("No trial has finished; give more --minutes.")


def _print_priors(data: str, space: str | None) -> None:
    from rgat.checks import check_word
    from rgat.data import load
    from rgat.experiments.extended import whole_space
    from rgat.experiments.folds import fold_data
    from rgat.experiments.inputs import with_descriptors
    from rgat.experiments.request import EXTENDED, SPACES
    from rgat.training.configuration import PRIORS, task_of

    check_word("space", space or "paper", SPACES)
    if space == EXTENDED:
        options = whole_space(with_descriptors(fold_data(load(data))).data)
        print_table(("option", "prior"), [(name, str(prior)) for name, prior in options.items()], 2)
        return
    priors = PRIORS[task_of(load(data))]
    rows = [(row.words, str(row.prior), option, "-" if row.of_attention else "yes") for option, row in priors.items()]
    print_table(("hyper-parameter", "prior", "option", "RGCN"), rows, text_columns=4)


def _rows(records: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    from rgat.training.search import select

    rows: list[tuple[str, ...]] = []
    for model in dict.fromkeys(record["model"] for record in records):
        trials = [record for record in records if record["model"] == model and record["kind"] == "trial"]
        best = select(trials)
        unfinished = sum(record["status"] != "done" for record in trials)
        rows.append((model, str(len(trials)), str(unfinished), f"{100 * best['objective']:.1f}", str(best["trial"])))
    return rows
