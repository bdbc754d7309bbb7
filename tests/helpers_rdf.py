"""RDF files and label tables for tests."""

import numpy as np

EX = "http://example.org/"
XSD = "http://www.w3.org/2001/XMLSchema#"
TRIPLES = f"""
<{EX}a> <{EX}knows> <{EX}b> .
<{EX}b> <{EX}knows> <{EX}c> .
<{EX}a> <{EX}age> "042"^^<{XSD}integer> .
<{EX}b> <{EX}age> "42"^^<{XSD}integer> .
<{EX}c> <{EX}age> "7"^^<{XSD}integer> .
<{EX}c> <{EX}note> "zwölf, \\"quoted\\"\\nand broken"@de .
<{EX}a> <{EX}has> _:x .
_:x <{EX}part> _:y .
_:y <{EX}size> "1.5"^^<{XSD}double> .
_:x <{EX}part> _:z .
_:z <{EX}size> "2.5"^^<{XSD}double> .
<{EX}a> <{EX}knows> <{EX}b> .
"""


def write(folder, text=TRIPLES, name="graph.nt"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def same(a, b):
    return a.node_names == b.node_names and a.relation_names == b.relation_names and np.array_equal(a.edges, b.edges)


def table(folder, text, name="labels.tsv"):
    path = folder / name
    path.write_text(text.replace(" ", "\t"), encoding="utf-8")
    return path
