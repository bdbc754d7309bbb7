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


def write_facts(folder, name, facts, labels):
    """Write triples of names and literals, and the class of each labelled node."""
    term = lambda word: word if word[0] == '"' else f"<{EX}{word}>"
    graph, table = folder / f"{name}.nt", folder / f"{name}.tsv"
    graph.write_text("".join(f"{term(s)} {term(p)} {term(o)} .\n" for s, p, o in sorted(set(facts))))
    table.write_text("node\tclass\n" + "".join(f"{EX}{node}\t{label}\n" for node, label in labels.items()))
    return graph, table


def write_neighbours(folder, seed=0):
    """Papers whose class is mostly that of those they cite, and of their venue, and a keyword now and then."""
    rng = np.random.default_rng([seed, 1])
    classes = rng.integers(4, size=350)
    facts = []
    for paper, own in enumerate(classes):
        for same in rng.random(4) < 0.7:
            among = np.flatnonzero(classes == own) if same else np.arange(350)
            facts.append((f"paper/{paper}", "cites", f"paper/{rng.choice(among)}"))
        venue = own if rng.random() < 0.5 else rng.integers(4)
        facts.append((f"paper/{paper}", "venue", f"venue/{venue}-{rng.integers(6)}"))
        word = WORDS[own] if rng.random() < 0.4 else rng.choice(WORDS)
        facts.append((f"paper/{paper}", "keyword", literal(word)))
        facts.append((f"paper/{paper}", "year", literal(int(rng.integers(1990, 2020)), "gYear")))
    return write_facts(folder, "neighbours", facts, {f"paper/{n}": f"c{c}" for n, c in enumerate(classes)})


def write_orders(folder, seed=0):
    """Customers whose class is the sum of the prices of what they bought: a literal one step away, and a count."""
    rng = np.random.default_rng([seed, 2])
    prices = rng.lognormal(3, 0.8, 60)
    facts = [(f"good/{n}", "price", literal(f"{price:.2f}", "decimal")) for n, price in enumerate(prices)]
    labels = {}
    for customer in range(350):
        goods = rng.choice(60, size=rng.integers(1, 7), replace=False)
        facts += [(f"customer/{customer}", "bought", f"good/{good}") for good in goods]
        facts.append(
            (f"customer/{customer}", "since", literal(f"20{rng.integers(10, 25)}-0{rng.integers(1, 10)}-11", "date"))
        )
        labels[f"customer/{customer}"] = "large" if prices[goods].sum() > 85 else "small"
    return write_facts(folder, "orders", facts, labels)


def write_witnesses(folder, seed=0):
    """Cases of which one witness in five, marked as present, names the class; the others name any."""
    rng = np.random.default_rng([seed, 3])
    facts, labels = [], {}
    for case in range(350):
        own, true = int(rng.integers(3)), int(rng.integers(5))
        for number in range(5):
            witness, said = f"witness/{case}-{number}", own if number == true else int(rng.integers(3))
            facts.append((f"case/{case}", "heard", witness))
            facts.append((witness, "names", f"answer/{said}"))
            facts.append((witness, "present", literal(str(number == true).lower(), "boolean")))
        labels[f"case/{case}"] = f"answer {own}"
    return write_facts(folder, "witnesses", facts, labels)
