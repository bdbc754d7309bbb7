"""Files made to crash the parser, or to fill memory and time: each is refused with one sentence."""

import bz2
import gzip
import io
import lzma
import random
import re
import subprocess
import sys
from pathlib import Path

import pyoxigraph as ox
import pytest

from rgat.data import files
from rgat.data.files import MAX_LINE_BYTES, UnreadableError
from rgat.data.rdf import limits
from rgat.data.rdf import reader as rdf
from rgat.data.rdf.limits import RdfLimits
from rgat.data.rdf.reader import read_triples
from rgat.data.tables import read_table
from rgat.predictor.streaming import read_smiles

E = "http://e/"


DEEP = 20_000


TRIPLE = f"<{E}a> <{E}p>"


XML = f'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="{E}">%s</rdf:RDF>'


def quoted(depth):
    return f"{TRIPLE} {f'<<( {TRIPLE} ' * depth}<{E}b>{' )>>' * depth} .\n"


def objects(depth, opening=f'{{"{E}p": ', closing="}"):
    return f'{{"@id": "{E}a", "{E}p": {opening * depth}"x"{closing * depth}}}'


def elements(depth):
    return XML % ("<e:a><e:p>" * depth + "</e:p></e:a>" * depth)


def entities(levels, blank=" "):
    names = [chr(ord("a") + level) for level in range(levels)]
    values = ["x" * 10] + [f"&{name};" * 10 for name in names[:-1]]
    declared = "".join(f'<!ENTITY{blank}{name} "{value}">' for name, value in zip(names, values, strict=True))
    return f"<!DOCTYPE r [{declared}]>\n" + XML % f'<e:a e:p="&{names[-1]};"/>'


HOSTILE = {
    "quoted.nt": (f"{TRIPLE} <{E}b> .\n{quoted(DEEP)}", "line 2: quoted triples must be nested at most 256 deep"),
    "quoted.nq": (quoted(DEEP), "line 1: quoted triples must be nested at most 256 deep"),
    "quoted.ttl": (f"# <<\n\n{quoted(DEEP)}", "line 3: quoted triples must be nested at most 256 deep"),
    "quoted.trig": (f"<{E}g> {{ {quoted(DEEP)} }}", "line 1: quoted triples must be nested at most 256 deep"),
    "quoted.n3": (quoted(DEEP), "line 1: quoted triples must be nested at most 256 deep"),
    "blank.jsonld": (objects(DEEP), "line 1: objects and lists must be nested at most 256 deep"),
    "list.jsonld": (objects(DEEP, '{"@list": [', "]}"), "line 1: objects and lists must be nested at most 256 deep"),
    "deep.rdf": (elements(DEEP), "line 1: elements must be nested at most 256 deep"),
    "laughs.rdf": (entities(12), "line 1: entity e must expand to at most 65,536 characters"),
    "spaced.rdf": (entities(12, "\u2003% "), "line 1: entity e must expand to at most 65,536 characters"),
}


def test_a_dump_cannot_kill_the_interpreter(tmp_path):
    """In a process of its own, which a crash would end."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from rgat.data.rdf.reader import read_triples\n"
        "for path in sys.argv[1:]:\n"
        "    try: print(path, len(read_triples(path)), flush=True)\n"
        "    except ValueError as error: print(error, flush=True)\n"
    )
    for name, (text, _) in HOSTILE.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", code, *HOSTILE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == [f"{name}, {message}, got more" for name, (_, message) in HOSTILE.items()]
    assert done.returncode == 0


def test_a_hostile_dump_is_one_sentence_on_the_command_line(tmp_path):
    (tmp_path / "graph.ttl").write_text(quoted(DEEP))
    (tmp_path / "labels.csv").write_text(f"node,class\n{E}a,x\n")
    command = [sys.executable, "-m", "rgat", "train", "--rdf", "graph.ttl", "--labels", "labels.csv", "--out", "model"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    sentence = "rgat: graph.ttl, line 1: quoted triples must be nested at most 256 deep, got more\n"
    assert (done.returncode, done.stderr) == (2, sentence)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("late.ttl", f"{TRIPLE} 1 .\n" * 30_000 + quoted(300)),
        ("late.nt", f"{TRIPLE} <{E}b> .\n" * 30_000 + quoted(300)),
        ("late.jsonld", "[" + ("{}," + " " * 99 + "\n") * 30_000 + objects(300) + "]"),
        ("late.rdf", XML % ('<e:a e:p="1"/>\n' * 30_000 + "<e:a><e:p>" * 300 + "</e:p></e:a>" * 300)),
        ("blind.rdf", XML % ("<e:a/>\n" * 30_000 + "<e:a><e:p>" * 300 + "</e:p></e:a>" * 300)),
    ],
)
def test_deep_nesting_far_down_a_file_is_refused_with_its_line(tmp_path, monkeypatch, name, text):
    for packed in (False, True):
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        with pytest.raises(ValueError, match=rf"{name}.*, line 3000[01]: .* must be nested at most 256 deep, got more"):
            read_triples(path)


@pytest.mark.parametrize(
    ("name", "text", "triples"),
    [
        ("quoted.nt", quoted(250), 1),
        ("quoted.ttl", quoted(250), 1),
        ("list.ttl", f"{TRIPLE} {'( ' * 3000}{')' * 3000} .", 5999),
        ("blank.jsonld", objects(120), 121),
        ("deep.rdf", elements(120), 240),
    ],
)
def test_moderate_nesting_is_read(tmp_path, name, text, triples):
    (tmp_path / name).write_text(text)
    assert len(read_triples(tmp_path / name)) == triples


SIGNS = "<<( {{{ [[[ <a><a> \\\"\\\" ' '' ''' # "


ESCAPED = SIGNS.replace("<", "&lt;")


INNOCENT = {
    "graph.nt": f'{TRIPLE} "{SIGNS}" . # {SIGNS}\n',
    "graph.ttl": f"""{TRIPLE} "{SIGNS}", '''{SIGNS[:-6]}''', <{E}it's#<> . # {SIGNS}\n""".replace("#<>", "#>"),
    "graph.n3": f'{TRIPLE} "{SIGNS}" . <{E}a> <= <{E}b> .\n',
    "graph.jsonld": f'{{"@id": "{E}a", "{E}p": "{SIGNS}"}},',
    "graph.rdf": f"<e:a><e:p>{ESCAPED}</e:p><e:p><![CDATA[{SIGNS}]]></e:p></e:a><!-- {SIGNS} --><?x {SIGNS}?>"
    f"<e:a e:p='a>b' e:q=\"</a>'\"/>\n",
}


@pytest.mark.parametrize("name", INNOCENT)
def test_signs_in_literals_iris_and_comments_are_no_nesting(tmp_path, name):
    text = INNOCENT[name] * 1000
    text = {".jsonld": f"[{text[:-1]}]", ".rdf": XML % text}.get(name[5:], text)
    (tmp_path / name).write_text(text)
    kind = getattr(ox.RdfFormat, rdf.FORMATS[rdf.SUFFIXES[name[5:]]])
    assert len(list(ox.parse(text.encode(), format=kind))) >= 1000
    assert len(read_triples(tmp_path / name)) >= 1


OBJECTS = (
    f"<{E}x>",
    f"<{E}it's#>",
    f"<{E}\\u0041'#>",
    "e:x\\'y\\#z",
    '"a << b"',
    '"\\"<<\\\\"',
    '""',
    "'<<'",
    "''",
    '"""a "" <<\n \\""""',
    "'''' \"<<'''",
    "(1 [] 'x')",
)


GAPS = (" ", "# << ' \" <x\r", "\n")


def depth_of(term):
    return 1 + depth_of(term.object) if isinstance(term, ox.Triple) else 0


def is_refused(text, word, rng):
    check, stream = RdfLimits(Path("no file"), word), io.BytesIO(text)
    try:
        while piece := stream.read(rng.choice([1, 2, 3, 7, 1000])):
            check(piece)
    except UnreadableError:
        return True
    return False


def test_the_depth_found_is_that_of_the_parser_whatever_the_pieces(monkeypatch):
    """In random statements, cut anywhere, the depth that there is passes and one less is refused."""
    rng = random.Random(0)
    for _ in range(200):
        terms = []
        for _ in range(rng.randrange(1, 6)):
            depth = rng.choice([0, 0, 1, 2, 3])
            term = rng.choice(OBJECTS[:-3] if depth else OBJECTS)
            for _ in range(depth):
                term = f"<<({rng.choice(GAPS)}e:a{rng.choice(GAPS)}e:p {term}{rng.choice(GAPS)})>>"
            terms.append(term)
        text = f"@prefix e: <{E}> .\n e:a e:p {', '.join(terms)} . e:a e:p <<( e:a e:p e:b )>> .".encode()
        depth = max(depth_of(quad.object) for quad in ox.parse(text, format=ox.RdfFormat.TURTLE))
        for limit, refused in ((depth, False), (depth - 1, True)):
            monkeypatch.setattr(limits, "MAX_DEPTH", limit)
            assert is_refused(text, "turtle", rng) is refused, (text, limit)


@pytest.mark.parametrize(
    ("word", "text", "depth"),
    [
        ("ntriples", f'{TRIPLE} "a << b \\" <<" .\n{quoted(3)}{quoted(1)}', 3),
        ("jsonld", objects(3, '{"@list": ["\\"[[", '), 1 + 2 * 3),
        ("rdfxml", '<?xml version="1.0"?><!DOCTYPE r [<!-- don\'t --><!ENTITY a ">">]>' + elements(2), 5),
    ],
)
def test_the_depth_of_other_formats_does_not_depend_on_the_pieces_either(monkeypatch, word, text, depth):
    rng = random.Random(0)
    for _ in range(20):
        for limit, refused in ((depth, False), (depth - 1, True)):
            monkeypatch.setattr(limits, "MAX_DEPTH", limit)
            assert is_refused(text.encode(), word, rng) is refused


def test_ordinary_entities_are_expanded(tmp_path):
    text = f'<!DOCTYPE r [ <!ENTITY e "{E}"> <!ENTITY deep "&e;x&amp;&#47;"> ]>\n' + XML
    path = tmp_path / "graph.owl"
    path.write_text(text % '<rdf:Description rdf:about="&e;a"><e:p rdf:resource="&deep;b"/></rdf:Description>' * 1)
    assert read_triples(path).node_names == [f"<{E}a>", f"<{E}x&/b>"]


def test_entities_must_not_multiply_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "SPARE_EXPANSION", 1 << 16)
    path = tmp_path / "graph.rdf"
    path.write_text(f'<!DOCTYPE r [<!ENTITY a "{"x" * 2000}">]>' + XML % ('<e:a e:p="&a;"/>' * 10))
    assert len(read_triples(path)) == 20
    path.write_text(f'<!DOCTYPE r [<!ENTITY a "{"x" * 9000}">]>' + XML % (f'<e:a e:p="{"&a;" * 50}"/>' * 100))
    with pytest.raises(ValueError, match=r"graph\.rdf, line 1: entities must expand to at most 200 times the file"):
        read_triples(path)


PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize(
    ("name", "line", "read"),
    [
        ("graph.nt", f"{TRIPLE} <{E}b> .{' ' * 1000}\n", read_triples),
        ("graph.ttl", " " * 999 + "\n", read_triples),
        ("labels.tsv", "\n", read_table),
        ("new.smi", "C\n", lambda path: list(read_smiles(path))),
    ],
)
def test_a_packed_bomb_is_refused(tmp_path, monkeypatch, suffix, name, line, read):
    monkeypatch.setattr(files, "SPARE", 1 << 18)
    path = tmp_path / f"{name}{suffix}"
    text = "a\tb\n" + line if name == "labels.tsv" else line
    path.write_bytes(PACK[suffix](text.encode() + line.encode() * ((1 << 20) // len(line))))
    with pytest.raises(ValueError, match=rf"{name}\{suffix}: must unpack to at most 200 times its size, got more"):
        read(path)


TOO_LONG = {
    "graph.nt": (f'{TRIPLE} "x" .\n{TRIPLE} "%s" .\n', ", line 2: a line must be", read_triples),
    "graph.ttl": (f'{TRIPLE} "x" .\n{TRIPLE} """%s""" .\n', ", line 2: a term must be", read_triples),
    "graph.jsonld": (f'{{"{E}p": "%s"}}', ": a term is too long for the parser, or the memory too small", read_triples),
    "labels.tsv": ("a\tb\nc\t%s\n", ", line 2: a line must be", read_table),
    "header.csv": ("%s", ", line 1: a line must be", read_table),
    "table.csv": ("smiles\nC\n%s\n", ", line 3: a line must be", lambda path: list(read_smiles(path))),
    "new.smi": ("C\n%s\n", ", line 2: a line must be", lambda path: list(read_smiles(path))),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_line_or_term_that_would_fill_the_memory_is_refused(tmp_path, name):
    text, message, read = TOO_LONG[name]
    message += " at most 15,728,640 bytes long, got more" if message.endswith("be") else ""
    (tmp_path / name).write_text(text % ("x" * (MAX_LINE_BYTES + (2 << 20))))
    with pytest.raises(ValueError, match=re.escape(name + message)):
        read(tmp_path / name)


@pytest.mark.parametrize("space", ["", " "])
def test_empty_elements_hide_nothing(tmp_path, space):
    path = tmp_path / "ontology.owl"
    declared = '<!DOCTYPE rdf:RDF [ <!ENTITY e "http://e/"> ]>' + XML % (f"<e:a{space}/>" + '<e:a e:p="1"/>\n' * 3)
    path.write_text(declared)
    assert len(read_triples(path)) >= 2
    seen = limits.RdfLimits(path, "rdfxml")
    seen(declared.encode())
    assert (seen.depth, seen.rest) == (0, b"")


@pytest.mark.parametrize("declaration", ['<!ENTITY q"r "%s">', '<!ENTITY n> "%s">', '<!ENTITY a SYSTEM "b" "%s">'])
def test_an_entity_of_another_form_is_refused(tmp_path, declaration):
    path = tmp_path / "entities.rdf"
    path.write_text("<!DOCTYPE rdf:RDF [ " + declaration % "x" + " ]>" + XML % '<e:a e:p="1"/>')
    with pytest.raises(ValueError, match='an entity must be declared as <!ENTITY name "value">'):
        read_triples(path)
