"""Limits of RDF files, checked before the parser receives the bytes.

pyoxigraph recurses into nested terms until the stack overflows, takes time and memory quadratic in the depth of JSON-LD
and RDF/XML, and expands XML entities without limit.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from rgat.data.files import MAX_LINE_BYTES, PIECE, UnreadableError, open_bytes

MAX_DEPTH = 256  # of nested terms, objects or elements; some thousands crash the parser
MAX_ENTITY = 1 << 16  # characters that one XML entity may expand to
MAX_EXPANSION = 200  # bytes of expanded entities per byte of the file, beyond SPARE_EXPANSION
SPARE_EXPANSION = 1 << 24

# Each pattern skips tokens that cannot nest and ends at an opening (group 1), a closing (group 2), or a token that the
# available bytes do not complete (group 3). In a valid file they find the same tokens as the parser.
_STRINGS = rb"""|""".join(
    rb"""QQQ(?:[^Q\\]++|\\.|Q(?!QQ))*+QQQ|Q(?:[^Q\\\r\n]++|\\.)++Q|QQ(?!Q|\Z)""".replace(b"Q", quote)
    for quote in (b'"', b"'")
)
_IRI_TEXT = rb"""[^<>"{}|^`\\\x00-\x20]"""
_TURTLE = (
    rb"""(?:[^"'#<>\\]++|<(?:%(text)b++|\\[uU][0-9A-Fa-f]++)*+>|%(strings)b|\#[^\r\n]*+[\r\n]|\\.|>(?!>|\Z)"""
    rb"""|<[=-](?!%(text)b*+\Z))*+(?:(<<)|(>>)|(.)|\Z)"""
) % {b"text": _IRI_TEXT, b"strings": _STRINGS}
_XML = (
    rb"""<(?:[^!?/"'>][^"'>]*+%(values)b(?:(?<=/)>|>())|/[^>]*+>()"""
    rb"""|!--.*?-->|!\[CDATA\[.*?\]\]>|\?.*?\?>|!DOCTYPE[^\[>]*+|![A-Z]++[^"'>]*+%(values)b>)|(<)"""
) % {b"values": rb"""(?:"[^"]*+"[^"'>]*+|'[^']*+'[^"'>]*+)*+"""}
_JSON_SIGNS = b'"[]{}'
_OTHERS = bytes(set(range(256)) - set(_JSON_SIGNS))
_NESTED = {"jsonld": "objects and lists", "rdfxml": "elements"}  # in all other formats quoted triples nest
_ENTITY = re.compile(r'<!ENTITY([^<>"]*)"([^<"]*)"\s*>')  # the only form that the parser accepts
_REFERENCE = re.compile(r"&([^;&]*)")
_PREDEFINED = {"amp": 1, "lt": 1, "gt": 1, "quot": 1, "apos": 1}


class RdfLimits:
    """Check the nesting, the terms and the entities of an RDF file piece by piece; raise at the first excess.

    JSON-LD and RDF/XML are checked throughout. Other formats are checked in their first piece only; a "<<", which
    may open a quoted triple, makes the check start again from the beginning of the file.
    """

    def __init__(self, path: Path, format: str) -> None:  # noqa: A002
        self.path, self.format = path, format
        self.pattern = re.compile(_XML if format == "rdfxml" else _TURTLE, re.DOTALL)
        self.checks_all = format in ("jsonld", "rdfxml") or not path.is_file()  # a pipe cannot be read again
        self.size, self.tail = 0, b""
        self._reset()

    def _reset(self) -> None:
        self.rest, self.line, self.depth, self.in_string = b"", 1, 0, False
        self.text_length = 0  # of XML, since the last "<"
        self.lengths: dict[str, int] = {}  # of expanded entities
        self.expanded = 0

    def __call__(self, piece: bytes) -> None:
        """Check the next bytes."""
        if not self.checks_all and _has_quoted_triple(self.tail + piece):
            self.check_all()
        if self.checks_all or not self.size:
            self._check(piece)
        self.tail = piece[-1:]
        self.size += len(piece)

    def check_all(self) -> None:
        """Check all bytes since the start of the file, unless that was done, and all following bytes."""
        if self.checks_all:
            return
        self._reset()
        self.checks_all, left = True, self.size
        with open_bytes(self.path) as file:
            while piece := file.read(min(left, 16 * PIECE)):
                self._check(piece)
                left -= len(piece)

    def _check(self, piece: bytes) -> None:
        text = self.rest + piece
        if self.format == "rdfxml":
            self._expand(text, piece)
            self.text_length = len(text) - text.rfind(b"<") if b"<" in text else self.text_length + len(piece)
        done = self._count_json_nesting(text) if self.format == "jsonld" else self._count_nesting(text)
        if max(len(text) - done, self.text_length) > MAX_LINE_BYTES:
            self._refuse(text[:done], f"a term must be at most {MAX_LINE_BYTES:,} bytes long, got more")
        self.line += text.count(b"\n", 0, done)
        self.rest = text[done:]

    def _count_nesting(self, text: bytes) -> int:
        """Count openings and closings, and return where the first incomplete token begins."""
        for match in self.pattern.finditer(text):
            group = match.lastindex
            if group == 1:
                self.depth += 1
                if self.depth > MAX_DEPTH:
                    self._refuse_depth(text[: match.start(1)])
            elif group == 2:
                self.depth = max(self.depth - 1, 0)
            elif group == 3:
                return match.start(3)
        return len(text)

    def _count_json_nesting(self, text: bytes) -> int:
        """Count the brackets outside strings, and return the number of bytes checked."""
        done = len(text) - (len(text) - len(text.rstrip(b"\\"))) % 2  # do not cut an escape in two
        plain = text[:done].replace(b"\\\\", b"").replace(b'\\"', b"")
        signs = np.frombuffer(plain.translate(None, _OTHERS), dtype=np.uint8)
        outside = (np.cumsum(signs == ord('"')) + self.in_string) % 2 == 0
        step = ((signs == ord("[")) | (signs == ord("{"))).astype(np.int8) - ((signs == ord("]")) | (signs == ord("}")))
        depth = self.depth + np.cumsum(step * outside)
        if depth.max(initial=0) > MAX_DEPTH:
            positions = np.flatnonzero(np.isin(np.frombuffer(plain, dtype=np.uint8), list(_JSON_SIGNS)))
            self._refuse_depth(plain[: positions[np.argmax(depth > MAX_DEPTH)]])
        if len(signs):
            self.depth, self.in_string = int(depth[-1]), not outside[-1]
        return done

    def _refuse_depth(self, before: bytes) -> None:
        nested = _NESTED.get(self.format, "quoted triples")
        self._refuse(before, f"{nested} must be nested at most {MAX_DEPTH} deep, got more")

    def _expand(self, text: bytes, piece: bytes) -> None:
        """Add up the sizes of expanded entities; like the parser, accept a declaration anywhere in the file."""
        if b"<!ENTITY" in text:
            content = text.decode(errors="replace")
            for start in re.finditer("<!ENTITY", content):
                match = _ENTITY.match(content, start.start())
                if match is None:
                    if ">" in content[start.end() :]:
                        self._refuse(b"", 'an entity must be declared as <!ENTITY name "value">')
                    continue
                head, value = match.groups()
                names = _REFERENCE.findall(value)
                longest = max(self.lengths.values(), default=1)
                length = len(value) + sum(
                    self.lengths.get(name, _PREDEFINED.get(name, 1 if name[:1] == "#" else longest)) for name in names
                )
                name = head.strip().removeprefix("%").strip()
                self.lengths[name] = max(length, self.lengths.get(name, 0))
                if length > MAX_ENTITY:
                    self._refuse(b"", f"entity {name} must expand to at most {MAX_ENTITY:,} characters, got more")
        if self.lengths:
            self.expanded += piece.count(b"&") * max(self.lengths.values())
            if self.expanded > max(SPARE_EXPANSION, MAX_EXPANSION * (self.size + len(piece))):
                self._refuse(b"", f"entities must expand to at most {MAX_EXPANSION} times the file, got more")

    def _refuse(self, before: bytes, reason: str) -> None:
        line = self.line + before.count(b"\n")
        raise UnreadableError(f"{self.path}, line {line}: {reason}")


def _has_quoted_triple(text: bytes) -> bool:
    pair = int.from_bytes(b"<<")  # compared two bytes at a time: `in` would stop at every single "<"
    return any(
        bool((np.frombuffer(text, dtype=np.uint16, count=(len(text) - k) // 2, offset=k) == pair).any())
        for k in range(min(2, len(text)))
    )
