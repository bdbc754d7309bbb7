"""A built-in knowledge graph: a fictional research institute whose people belong to one of four groups.

The graph does not state a person's group. The projects that people work on and the topics that they research mostly
belong to their group. Uninformative relations (people review, teach and read about anything) link the same people to
the same topics, so a model must tell relations apart. Names, years, page counts and the like are literals. All triples
are drawn from one random seed.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch

from rgat.data.dataset import MISSING, NodeData
from rgat.data.rdf.graph import assemble
from rgat.data.rdf.reader import Triples
from rgat.data.splits import shuffled_parts

Triple = tuple[str, str, str]

GROUPS = ("materials", "vision", "genetics", "climate")
LABEL_PREDICATE = "memberOf"  # the label; never in the graph
PREFIX = "http://institute.example/"

_WORDS = {
    "materials": ("alloys", "ceramics", "polymers", "corrosion", "crystals", "glass", "coatings", "fatigue"),
    "vision": ("tracking", "segmentation", "depth", "faces", "texture", "motion", "shape", "colour"),
    "genetics": ("sequencing", "splicing", "mutation", "expression", "heredity", "regulation", "repair", "drift"),
    "climate": ("rainfall", "aerosols", "glaciers", "currents", "drought", "storms", "albedo", "carbon"),
}
_NAMES = ("Ada", "Bela", "Caro", "Dian", "Edda", "Fynn", "Gita", "Hugo", "Iven", "Jora", "Kimi", "Lena", "Milo", "Nura")


def load_institute(seed: int = 0) -> NodeData:
    """Return the institute as a data set with the group as the class; half of the people are training nodes."""
    triples, groups = institute_triples(seed)
    nodes = {name: i for i, name in enumerate(sorted({s for s, _, _ in triples} | {o for _, _, o in triples}))}
    relations = {name: i for i, name in enumerate(sorted({p for _, p, _ in triples}))}
    edges = np.array([(nodes[s], relations[p], nodes[o]) for s, p, o in triples])
    labels = torch.full((len(nodes),), MISSING)
    for person, group in groups.items():
        labels[nodes[person]] = GROUPS.index(group)
    parts = shuffled_parts((labels != MISSING).nonzero().squeeze(1), (0.5, 0.25), seed)
    graph = Triples(list(nodes), list(relations), edges)
    data = assemble(graph, None, labels, GROUPS, parts, inverses=True, self_loops=True, name="institute")
    return replace(data, provenance=data.provenance | {"generator": "rgat.data.synthetic.institute", "seed": seed})


def institute_triples(seed: int = 0, num_people: int = 240) -> tuple[list[Triple], dict[str, str]]:
    """Return the triples, sorted, and the group of each person; terms are written as in N-Triples."""
    draft = _Draft(seed)
    topics = {group: [f"topic/{word}" for word in words] for group, words in _WORDS.items()}
    for topic in (topic for group in GROUPS for topic in topics[group]):
        draft.link(topic, "type", "Topic")
        draft.state(topic, "label", topic.removeprefix("topic/"))
    for letter in "ABC":
        draft.link(f"building/{letter}", "type", "Building")
    projects = _add_projects(draft, topics)
    people = [f"person/{number}" for number in range(num_people)]
    groups = {person: GROUPS[draft.rng.randrange(4)] for person in people}
    _add_people(draft, groups, topics, projects)
    _add_papers(draft, groups)
    for room in sorted({value for _, predicate, value in draft.triples if predicate == _iri("hasOffice")}):
        name = room[len(PREFIX) + 1 : -1]
        draft.link(name, "inBuilding", f"building/{name.removeprefix('room/')[0]}")
    return sorted(draft.triples), {_iri(person): group for person, group in groups.items()}


def _iri(name: str) -> str:
    return f"<{PREFIX}{name}>"


class _Draft:
    """The triples drawn so far, and the random generator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.triples: set[Triple] = set()

    def link(self, subject: str, predicate: str, value: str) -> None:
        self.triples.add((_iri(subject), _iri(predicate), _iri(value)))

    def state(self, subject: str, predicate: str, value: object) -> None:
        datatype = "integer" if isinstance(value, int) else "string"
        literal = f'"{value}"^^<http://www.w3.org/2001/XMLSchema#{datatype}>'
        self.triples.add((_iri(subject), _iri(predicate), literal))

    def choose(self, members: dict[str, list[str]], group: str, share: float) -> str:
        """Choose a member of the group with probability ``share``, else any member."""
        every = [member for other in GROUPS for member in members[other]]
        return self.rng.choice(members[group] if self.rng.random() < share else every)


def _add_projects(draft: _Draft, topics: dict[str, list[str]]) -> dict[str, list[str]]:
    projects: dict[str, list[str]] = {group: [] for group in GROUPS}
    funders = [f"funder/{i}" for i in range(5)]
    for number in range(32):
        group, project = GROUPS[number % 4], f"project/{number}"
        projects[group].append(project)
        draft.link(project, "type", "Project")
        draft.link(project, "fundedBy", draft.rng.choice(funders))
        draft.state(project, "startYear", draft.rng.randint(2012, 2024))
        for _ in range(3):
            draft.link(project, "about", draft.choose(topics, group, 0.85))
    return projects


def _add_people(
    draft: _Draft, groups: dict[str, str], topics: dict[str, list[str]], projects: dict[str, list[str]]
) -> None:
    rng, people = draft.rng, list(groups)
    all_topics = [topic for group in GROUPS for topic in topics[group]]
    all_projects = [project for group in GROUPS for project in projects[group]]
    for person, group in groups.items():
        draft.link(person, "type", "Person")
        draft.state(person, "name", f"{rng.choice(_NAMES)} {rng.choice(_NAMES)}son")
        draft.state(person, "phone", rng.randint(1000, 9999))
        for _ in range(2):
            draft.link(person, "worksOn", draft.choose(projects, group, 0.85))
            draft.link(person, "researches", draft.choose(topics, group, 0.85))
        # Relations to the same topics and projects that do not depend on the group.
        for _ in range(2):
            draft.link(person, "reviews", rng.choice(all_topics))
            draft.link(person, "teaches", rng.choice(all_topics))
            draft.link(person, "advises", rng.choice(all_projects))
        draft.link(person, "readsAbout", rng.choice(all_topics))
        draft.link(person, "hasOffice", f"room/{rng.choice('ABC')}{rng.randint(1, 25)}")
        draft.link(person, "lunchesWith", rng.choice(people))
        if rng.random() < 0.5:
            colleagues = [other for other in people if groups[other] == group and other != person]
            draft.link(person, "sharesLabWith", rng.choice(colleagues))


def _add_papers(draft: _Draft, groups: dict[str, str]) -> None:
    rng, people = draft.rng, list(groups)
    for number in range(160):
        paper, author = f"paper/{number}", rng.choice(people)
        colleagues = [other for other in people if groups[other] == groups[author]]
        draft.link(paper, "type", "Paper")
        draft.link(paper, "author", author)
        draft.link(paper, "author", rng.choice(colleagues if rng.random() < 0.9 else people))
        draft.link(paper, "cites", f"paper/{rng.randrange(160)}")
        draft.state(paper, "pages", rng.randint(4, 30))
        draft.state(paper, "year", rng.randint(2012, 2025))
