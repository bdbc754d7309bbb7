"""Made-up graphs of people whose class follows from a literal, from links, or from both."""

import numpy as np

EX = "http://made-up.example/"
XSD = "http://www.w3.org/2001/XMLSchema#"
COUNT = 400  # people, all of them labelled
WORDS = ("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "jolly", "kayak", "lemon")


def literal(value, datatype="string"):
    return f'"{value}"^^<{XSD}{datatype}>'


def draw_number(rng):
    """A skewed number in three ranges; the middle one is a class of its own."""
    weight = rng.lognormal(3, 1.2)
    return {"weight": literal(f"{weight:.2f}", "decimal")}, "abc"[int(weight > 10) + int(weight > 40)]


def draw_date(rng):
    """The season of a date decides, whatever its year."""
    day = np.datetime64("1990-01-01") + int(rng.integers(0, 12_000))
    return {"founded": literal(day, "date")}, "warm" if 4 <= int(str(day)[5:7]) <= 9 else "cold"


def draw_word(rng):
    """One of three words, among others of a text, decides."""
    key = int(rng.integers(3))
    words = [WORDS[key], *rng.choice(WORDS[3:], 5)]
    return {"motto": literal(" ".join(rng.permutation(words)))}, ("red", "green", "blue")[key]


def draw_both(rng):
    """A good club decides for one class; who is in another one has a class by a number."""
    club, dose = int(rng.integers(30)), float(rng.normal(50, 10))
    name = "member" if club % 2 else "high" if dose > 50 else "low"
    return {"club": f"<{EX}club/{club}>", "dose": literal(f"{dose:.1f}", "double")}, name


def draw_club(rng):
    """The club decides, and literals are noise."""
    club = int(rng.integers(30))
    return {"club": f"<{EX}club/{club}>"}, "abc"[club % 3]


DRAWS = {"number": draw_number, "date": draw_date, "word": draw_word, "both": draw_both, "club": draw_club}
PREDICATE = {"number": "weight", "date": "founded", "word": "motto", "both": "dose", "club": "club"}


def write_people(folder, kind, seed=0, count=COUNT):
    """Write a graph and its labels; links among the people, names and the number of a room say nothing."""
    rng = np.random.default_rng([seed, *kind.encode()])
    lines, labels = [], ["person\tclass"]
    for number in range(count):
        person = f"<{EX}person/{number}>"
        facts, name = DRAWS[kind](rng)
        facts["room"] = literal(int(rng.integers(100, 999)), "integer")
        facts["name"] = literal(f"{rng.choice(WORDS)} {rng.choice(WORDS)}son {number}")
        lines += [f"{person} <{EX}{predicate}> {value} ." for predicate, value in facts.items()]
        lines += [f"{person} <{EX}knows> <{EX}person/{other}> ." for other in rng.integers(count, size=2)]
        lines.append(f"{person} <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <{EX}Person> .")
        labels.append(f"{EX}person/{number}\t{name}")
    graph, table = folder / f"{kind}.nt", folder / f"{kind}.tsv"
    graph.write_text("\n".join(lines) + "\n")
    table.write_text("\n".join(labels) + "\n")
    return graph, table
