"""Write the report: its sections in reading order as one HTML page and one Markdown file, and all tables and charts."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template

from rgat.data.files import write_atomically
from rgat.report import charts, tables
from rgat.report import extended as search_tables
from rgat.report.claims import MEMORISED, claims_table, listed
from rgat.report.formats import (
    Chart,
    ReportTable,
    chart_style,
    data_attributes,
    escape_markdown,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
)
from rgat.report.records import LEFT_OUT, load_studies
from rgat.report.statistics import SIGNIFICANT, smallest_p
from rgat.report.studies import MODELS, Comparison, Study


@dataclass(frozen=True)
class Block:
    """Paragraphs, charts and tables under a heading or none; ``study`` is the checkbox that hides it on the page."""

    title: str | None
    charts: list[Chart] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    study: str | None = None


@dataclass(frozen=True)
class Section:
    """An anchor, a title, paragraphs and blocks; ``study`` is the checkbox that hides it on the page."""

    key: str
    title: str
    paragraphs: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    study: str | None = None


PAGE = "report.html"
MOST_DAMAGE = 20  # sentences for `on_damage`
READING = [
    "A row is one model with one setting, trained with several random seeds. Rows named C- are the same trained "
    "models, evaluated with constant attention: all coefficients of a softmax group are equal. The notes below the "
    "settings say how each model was selected. Each run was evaluated on the test part once, at the end.",
    "Each ordered pair of rows has the p-value of the paper's one-sided Mann-Whitney U test. It is exact, also with "
    "ties, if the two rows have at most 50 runs together. Among so many pairs some p-values are small by chance, so "
    "conclusions are drawn only in two families that were fixed beforehand, from two-sided tests with Holm's "
    "correction: the attention models against RGCN, and against themselves with constant attention.",
    "Intervals over seeds show what other random seeds would give on the same test examples (Student, Welch). "
    "Intervals over seeds and examples also show what other test examples from the same distribution would give "
    "(bootstrap). A claim about the task, rather than about this split, needs the second kind.",
]


def check_libraries() -> None:
    """Raise an ImportError unless the libraries of the report are installed; call it before a long training.

    Examples:
        >>> from rgat.report import check_libraries
        >>> check_libraries()  # no error: they are installed
    """
    try:
        import matplotlib as mpl
        import scipy
    except ImportError as error:
        raise ImportError(
            f"a report needs matplotlib and scipy ({error}); install them with `pip install 'rgat[report]'`"
        ) from error
    del mpl, scipy


def write_report(runs: Sequence[Path], out: Path, on_damage: Callable[[str], None] | None = None) -> Path:
    """Write the report on all records at or below ``runs`` into the folder ``out``, and return the path of its page.

    The folder then holds ``report.html``, ``results.md``, ``tables/*.csv`` and ``*.tex``, and ``charts/*.svg``,
    ``*.pdf`` and ``*.png``. The same records give the same bytes. Damaged records and files are left out, and the page
    lists them.

    Args:
        runs: folders and packed files of records.
        out: the folder.
        on_damage: called with a sentence on each of the first 20 damaged records and files, and one with their number.

    Examples:
        >>> from pathlib import Path
        >>> from rgat.experiments.baseline_runs import run_baselines
        >>> from rgat.report import write_report
        >>> records = list(run_baselines("FEAT", "institute", seeds=1, out=Path("runs")))
        >>> write_report([Path("runs")], Path("report")).name
        'report.html'
    """
    check_libraries()
    studies, notices = load_studies(runs)
    left_out = [notice for notice in notices if notice.startswith(LEFT_OUT)]
    if left_out:
        count = f"Damaged records and files that are left out: {len(left_out)}."
        notices.insert(0, count)
        if on_damage is not None:
            for sentence in (*left_out[:MOST_DAMAGE], count):
                on_damage(sentence)
    with chart_style():
        sections = arrange(studies, notices)
        blocks = [block for section in sections for block in section.blocks]
        svgs = {}
        for chart in (chart for block in blocks for chart in block.charts):
            contents = chart.save()
            svgs[chart.key] = contents["svg"]
            for form, content in contents.items():
                write_atomically(out / "charts" / f"{chart.key}.{form}", content)
    for table in (table for block in blocks for table in block.tables):
        write_atomically(out / "tables" / f"{table.key}.csv", to_csv(table).encode())
        write_atomically(out / "tables" / f"{table.key}.tex", to_latex(table).encode())
    write_atomically(out / "results.md", to_document(sections).encode())
    write_atomically(out / PAGE, to_page(sections, studies, svgs).encode())
    return out / PAGE


def arrange(studies: Sequence[Study], notices: Sequence[str]) -> list[Section]:
    """Return all sections in reading order."""
    provenance = tables.provenance(studies)
    extended = [study for study in studies if study.is_extended]
    studies = [study for study in studies if not study.is_extended]
    claims = claims_table(studies)
    summaries = [Block(study.title, paragraphs=summarise(study), study=study.key) for study in studies]
    sections = [
        Section("summary", "Summary", blocks=summaries),
        Section("notices", "Read this first", list(notices)),
        Section("results", "Results", blocks=_overview(studies)),
        *(Section(s.key, s.title, blocks=_study_blocks(s), study=s.key) for s in studies),
        Section("claims", "The paper's claims", blocks=[Block(None, tables=[claims])] if claims else []),
        Section("extended", "Beyond the paper: the extended space", *_extended(extended)),
        Section("reading", "How to read this", READING),
        Section("provenance", "Provenance", blocks=[Block(None, tables=provenance)]),
    ]
    return [section for section in sections if section.paragraphs or section.blocks]


def _extended(studies: Sequence[Study]) -> tuple[list[str], list[Block]]:
    """Return the paragraphs and blocks of the searches in the extended space; none where there are none."""
    blocks = []
    for study in studies:
        shown = [search_tables.rows(study), search_tables.members(study), tables.settings(study)]
        found = list(filter(None, shown))
        blocks.append(Block(study.title, tables=found, paragraphs=search_tables.describe(study), study=study.key))
    return ([search_tables.READING] if blocks else []), blocks


def _overview(studies: Sequence[Study]) -> list[Block]:
    """Return the paper's table of results, one for nodes and one for graphs."""
    overviews = []
    for is_node, key, caption in (
        (True, "results-nodes", "Node classification: test accuracy in %"),
        (False, "results-graphs", "Graph classification: test mean ROC-AUC"),
    ):
        if chosen := [study for study in studies if study.rows and study.is_node == is_node]:
            caption = f"{caption}, mean ± standard deviation over n runs"
            overviews.append(tables.overview(chosen, key, caption))
    return [Block(None, tables=overviews)] if overviews else []


def _study_blocks(study: Study) -> list[Block]:
    rgcn, constant = study.against_rgcn, study.against_constant
    layout: list[tuple[str, list[Chart | None], list[ReportTable | None]]] = [
        ("Scores", [charts.bars(study)], [tables.scores(study)]),
        (
            "What can be concluded",
            [
                charts.p_values(study),
                charts.differences(study, rgcn, "rgcn", "difference from RGCN"),
                charts.differences(study, constant, "attention", "difference from constant attention"),
            ],
            [
                tables.comparisons(study, rgcn, "against-rgcn", "attention models against RGCN"),
                tables.comparisons(study, constant, "against-constant", "attention against constant attention"),
                tables.significance(study),
            ],
        ),
        ("Tasks", [], [tables.tasks(study)]),
        ("Classes", [], [tables.classes(study), tables.confusions(study)]),
        (
            "The search",
            [
                charts.distribution(study, prior_only=False),
                charts.distribution(study, prior_only=True),
                charts.best_of(study),
            ],
            [tables.search(study), tables.importance(study)],
        ),
        (
            "Learning curves",
            [
                charts.curves(study, "train_loss", "training loss"),
                charts.curves(study, "valid_metric", f"validation {study.metric}"),
            ],
            [],
        ),
        ("Settings", [], [tables.settings(study)]),
    ]
    blocks = [Block(title, list(filter(None, drawn)), list(filter(None, shown))) for title, drawn, shown in layout]
    return [block for block in blocks if block.charts or block.tables]


def summarise(study: Study) -> list[str]:
    """Return the conclusions of a study: order, comparison with RGCN and with constant attention, cautions."""
    if not study.rows:
        return [f"{study.title} has search trials but no finished runs, so it has no test scores."]
    if not study.five:
        return [f"{study.title} has only runs of other systems, none of RGCN or an attention model."]
    paragraphs = [_order(study), _against_rgcn(study), _against_constant(study), *_cautions(study)]
    return [paragraph for paragraph in paragraphs if paragraph]


def _order(study: Study) -> str:
    """Rank the models by mean; neighbours are called tied only where there are enough runs to tell."""
    ranking = study.ranking
    if len(ranking) < 2:
        return ""
    few = min(len(row.scores()) for row, _ in ranking) < _fewest_runs(len(study.against_rgcn) or 1)
    ranks: list[list[str]] = [[]]
    for row, step in ranking:
        ranks[-1].append(f"{row.name} ({study.number(row.scores().mean())})")
        if step != "last" and (few or step != "tied"):
            ranks.append([])
    order = ", ".join(f"{i}) {' tied with '.join(names)}" for i, names in enumerate(ranks, 1))
    steps = [step for _, step in ranking[:-1]]
    if few or "no test" in steps:
        tail = "This is the order of the means only: not every step can be tested."
    elif len(ranks) == 1:
        tail = "No step of this order is significant."
    elif "tied" in steps:
        tail = "Each step is significant (one-sided, p ≤ 0.05), except between neighbours called tied."
    else:
        tail = "Each step is significant (one-sided, p ≤ 0.05)."
    unit = ", in %" if study.percent else ""
    return f"Best to worst by mean test {study.metric}{unit}: {order}. {tail}"


def _fewest_runs(family: int) -> int:
    """Return the fewest runs per row with which a comparison in a family of this size can be significant."""
    return next(n for n in range(2, 99) if family * smallest_p(n, n) <= SIGNIFICANT)


def _inconclusive(study: Study, family: Sequence[Comparison]) -> list[str]:
    """Return a clause for each reason why comparisons have no conclusion."""
    runs = _fewest_runs(len(family))
    reasons = {
        "no conclusion": "",
        "too few runs to tell": f"too few runs for a conclusion (at least {runs} per row are needed)",
        "no test: too few runs": "no test with a single run",
        "no test: no spread": "no test, because all runs of each row score the same",
    }
    clauses = []
    for verdict, reason in reasons.items():
        names = [c.first.name for c in family if c.verdict == verdict]
        changes = [study.number(c.difference, sign=True) for c in family if c.verdict == verdict]
        if names and reason:
            changed = listed([f"{name} {change}" for name, change in zip(names, changes, strict=True)])
            clauses.append(f"{reason}; differences of means: {changed}")
        elif names:
            clauses.append(f"nothing can be concluded for {listed(names)}")
    return clauses


def _against_rgcn(study: Study) -> str:
    family = study.against_rgcn
    if not family:
        return ""
    if all(comparison.verdict == "no conclusion" for comparison in family):
        models = f"none of the {len(family)} attention models differs"
        models = models if len(family) > 1 else f"{family[0].first.name} does not differ"
        return f"No conclusion against RGCN: {models} significantly from it (two-sided, Holm)."
    clauses = []
    for verdict in ("better", "worse"):
        names = [c.first.name for c in family if c.verdict == verdict]
        clauses += [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {verdict} than RGCN"] if names else []
    clauses += _inconclusive(study, family)
    return f"Against RGCN (two-sided, corrected for {len(family)} comparisons): {'; '.join(clauses)}."


def _against_constant(study: Study) -> str:
    family = study.against_constant
    if not family:
        return ""
    clauses = []
    for verb, verdict in (("raises", "better"), ("lowers", "worse")):
        changes = [f"{c.first.name} by {abs(100 * c.relative):.2f} %" for c in family if c.verdict == verdict]
        clauses += [f"attention {verb} the mean of {listed(changes)} (relative)"] if changes else []
    clauses += _inconclusive(study, family)
    return f"Against the same trained models with constant attention: {'; '.join(clauses)}."


def _cautions(study: Study) -> list[str]:
    cautions = []
    means = sorted((row.scores().mean() for row in study.five), reverse=True)
    if study.is_node and study.test_size and len(means) > 1 and means[0] - means[1] < 1 / study.test_size:
        cautions.append(
            f"The test set has {study.test_size} nodes: one of them is worth {100 / study.test_size:.2f} points, more "
            f"than the {100 * (means[0] - means[1]):.2f} points between the two best means."
        )
    concluded = [c for c in study.against_rgcn if c.verdict in ("better", "worse")]
    ranks_only = [
        c for c in concluded if c.seeds is not None and abs(c.difference) < c.seeds
    ]  # the means do not show it
    rgcn = study.row("RGCN")
    if study.is_node and rgcn is not None and len(rgcn.scores("train")) and rgcn.scores("train").mean() >= MEMORISED:
        better = [c.first.name for c in concluded if c.verdict == "better" and c not in ranks_only]
        verb = "is" if len(better) == 1 else "are"
        outcome = f"but {listed(better)} {verb} better here" if better else "and no result here contradicts that"
        cautions.append(
            f"RGCN fits the training set perfectly. The paper expects attention not to help in that case, {outcome}."
        )
    if ranks_only:
        shown = [
            f"{c.first.name} {study.number(c.difference, sign=True)} ± {study.number(c.seeds or 0)}" for c in ranks_only
        ]
        cautions.append(
            "The tests compare ranks. These means differ from RGCN's by less than the half width of the 95 % interval "
            f"over seeds: {listed(shown)}."
        )
    missing = [model for model in MODELS if study.row(model) is None]
    if missing and len(missing) < len(MODELS):
        cautions.append(f"There are no finished runs of {listed(missing)}.")
    return cautions


def to_page(sections: Sequence[Section], studies: Sequence[Study], svgs: dict[str, bytes]) -> str:
    """Return the HTML page, given its sections and the SVG of each chart by key."""
    body, contents = [], []
    for section in sections:
        blocks = "".join(_block(block, svgs) for block in section.blocks)
        title, key, study = html.escape(section.title), html.escape(section.key), data_attributes(study=section.study)
        body.append(f'<section id="{key}"{study}><h2>{title}</h2>{_paragraphs(section.paragraphs)}{blocks}</section>')
        contents.append(f'<li{study}><a href="#{key}">{title}</a></li>')
    asset = {end: (files("rgat.report") / f"page.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js")}
    models = dict.fromkeys(row.model for study in studies for row in study.rows)
    runs, trials = sum(len(study.runs) for study in studies), sum(len(study.trials) for study in studies)
    searched = f" and {trials:,} search trials" if trials else ""
    num_sets = len({study.data for study in studies})
    lead = f"{runs:,} final runs{searched} on {num_sets} data set{'s' if num_sets > 1 else ''}."
    return Template(asset["html"]).substitute(
        title=html.escape(f"Results: {', '.join(dict.fromkeys(study.title for study in studies))}"),
        lead=html.escape(lead),
        style=asset["css"],
        script=asset["js"],
        contents="".join(contents),
        studies=_checkboxes("study", {study.key: study.title for study in studies}),
        models=_checkboxes("model", {model: model for model in models}),
        body="".join(body),
    )


def _checkboxes(kind: str, names: dict[str, str]) -> str:
    return "".join(
        f'<label><input type="checkbox" checked data-pick="{kind}" value="{html.escape(value)}"> '
        f"{html.escape(name)}</label>"
        for value, name in names.items()
    )


def _paragraphs(paragraphs: Sequence[str]) -> str:
    return "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs)


def _block(block: Block, svgs: dict[str, bytes]) -> str:
    title = f"<h3>{html.escape(block.title)}</h3>" if block.title else ""
    charts = "".join(chart.to_html(svgs[chart.key]) for chart in block.charts)
    charts = f'<div class="charts">{charts}</div>' if charts else ""
    content = f"{title}{_paragraphs(block.paragraphs)}{charts}{''.join(map(to_html, block.tables))}"
    return f'<div class="block"{data_attributes(study=block.study)}>{content}</div>'


def to_document(sections: Sequence[Section]) -> str:
    """Return the report as Markdown: text and tables, no charts."""
    lines = ["# Results", "", "Generated by `rgat report` from the records; do not edit.", ""]
    for section in sections:
        lines += [f"## {escape_markdown(section.title)}", ""]
        lines += [f"{escape_markdown(paragraph)}\n" for paragraph in section.paragraphs]
        for block in section.blocks:
            if block.paragraphs or block.tables:
                lines += [f"### {escape_markdown(block.title)}", ""] if block.title else []
                lines += [f"{escape_markdown(paragraph)}\n" for paragraph in block.paragraphs]
                lines += [to_markdown(table) for table in block.tables]
    return "\n".join(lines).rstrip() + "\n"
