from rgat.data.synthetic.institute import institute_triples

PREFIX = "http://institute.example/"


def write_institute(folder, num_people=60, labelled=48):
    """Write an institute as plain files; the last people have no label."""
    triples, groups = institute_triples(3, num_people)
    graph, labels = folder / "institute.nt", folder / "labels.tsv"
    graph.write_text("".join(f"{' '.join(triple)} .\n" for triple in triples))
    people = sorted(groups.items(), key=lambda item: int(item[0].rpartition("/")[2][:-1]))
    rows = [f"{person.strip('<>')}\t{group}\n" for person, group in people[:labelled]]
    labels.write_text("person\tgroup\n" + "".join(rows))
    return graph, labels
