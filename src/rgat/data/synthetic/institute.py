"""A built-in knowledge graph: a made-up research institute, whose people belong to one of four groups.

The group of a person is not in the graph. It shows in what the person *does*: projects they work on and topics they
research mostly belong to their group. The same topics are also connected to the same people by relations that say
nothing (people review, teach and read about anything), so a model must tell relations apart. Names, years, numbers of
pages and the like are literals. Everything is drawn from one seed by this file; nothing comes from elsewhere.
"""

from __future__ import annotations

import random

Triple = tuple[str, str, str]

GROUPS = ("materials", "vision", "genetics", "climate")
LABEL_PREDICATE = "memberOf"  # what is to be learned; never in the graph
PREFIX = "http://institute.example/"

_WORDS = {
    "materials": ("alloys", "ceramics", "polymers", "corrosion", "crystals", "glass", "coatings", "fatigue"),
    "vision": ("tracking", "segmentation", "depth", "faces", "texture", "motion", "shape", "colour"),
    "genetics": ("sequencing", "splicing", "mutation", "expression", "heredity", "regulation", "repair", "drift"),
    "climate": ("rainfall", "aerosols", "glaciers", "currents", "drought", "storms", "albedo", "carbon"),
}
_NAMES = ("Ada", "Bela", "Caro", "Dian", "Edda", "Fynn", "Gita", "Hugo", "Iven", "Jora", "Kimi", "Lena", "Milo", "Nura")


def institute_triples(seed: int = 0, num_people: int = 240) -> tuple[list[Triple], dict[str, str]]:
    """Return the triples, sorted, and the group of each person; terms are written as in N-Triples."""
    rng = random.Random(seed)
    triples: set[Triple] = set()

    def iri(name: str) -> str:
        return f"<{PREFIX}{name}>"

    def add(subject: str, predicate: str, value: str) -> None:
        triples.add((iri(subject), iri(predicate), iri(value)))

    def say(subject: str, predicate: str, value: object) -> None:
        kind = "integer" if isinstance(value, int) else "string"
        triples.add((iri(subject), iri(predicate), f'"{value}"^^<http://www.w3.org/2001/XMLSchema#{kind}>'))

    def own_or_any(own: list[str], every: list[str], share: float) -> str:
        return rng.choice(own if rng.random() < share else every)

    topics = {group: [f"topic/{word}" for word in words] for group, words in _WORDS.items()}
    all_topics = [topic for group in GROUPS for topic in topics[group]]
    for topic in all_topics:
        add(topic, "type", "Topic")
        say(topic, "label", topic.removeprefix("topic/"))
    buildings = [f"building/{letter}" for letter in "ABC"]
    for building in buildings:
        add(building, "type", "Building")

    projects: dict[str, list[str]] = {group: [] for group in GROUPS}
    funders = [f"funder/{i}" for i in range(5)]
    for number in range(32):
        group, project = GROUPS[number % 4], f"project/{number}"
        projects[group].append(project)
        add(project, "type", "Project")
        add(project, "fundedBy", rng.choice(funders))
        say(project, "startYear", rng.randint(2012, 2024))
        for _ in range(3):
            add(project, "about", own_or_any(topics[group], all_topics, 0.85))
    all_projects = [project for group in GROUPS for project in projects[group]]

    people = [f"person/{number}" for number in range(num_people)]
    groups = {person: GROUPS[rng.randrange(4)] for person in people}
    for person in people:
        group = groups[person]
        add(person, "type", "Person")
        say(person, "name", f"{rng.choice(_NAMES)} {rng.choice(_NAMES)}son")
        say(person, "phone", rng.randint(1000, 9999))
        for _ in range(2):
            add(person, "worksOn", own_or_any(projects[group], all_projects, 0.85))
            add(person, "researches", own_or_any(topics[group], all_topics, 0.85))
        # The same kinds of ends as above, but without any tie to the group.
        for _ in range(2):
            add(person, "reviews", rng.choice(all_topics))
            add(person, "teaches", rng.choice(all_topics))
            add(person, "advises", rng.choice(all_projects))
        add(person, "readsAbout", rng.choice(all_topics))
        add(person, "hasOffice", f"room/{rng.choice('ABC')}{rng.randint(1, 25)}")
        add(person, "lunchesWith", rng.choice(people))
        if rng.random() < 0.5:
            colleagues = [other for other in people if groups[other] == group and other != person]
            add(person, "sharesLabWith", rng.choice(colleagues))
    for number in range(160):
        paper, author = f"paper/{number}", rng.choice(people)
        colleagues = [other for other in people if groups[other] == groups[author]]
        add(paper, "type", "Paper")
        add(paper, "author", author)
        add(paper, "author", own_or_any(colleagues, people, 0.9))
        add(paper, "cites", f"paper/{rng.randrange(160)}")
        say(paper, "pages", rng.randint(4, 30))
        say(paper, "year", rng.randint(2012, 2025))
    rooms = sorted({value for _, predicate, value in triples if predicate == iri("hasOffice")})
    for room in rooms:
        name = room[len(PREFIX) + 1 : -1]
        add(name, "inBuilding", f"building/{name.removeprefix('room/')[0]}")
    return sorted(triples), {iri(person): group for person, group in groups.items()}
