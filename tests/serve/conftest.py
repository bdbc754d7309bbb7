import pytest
from helpers_institute import PREFIX, write_institute

import rgat
from rgat.data import from_rdf
from rgat.data.rdf.labels import RDFS_LABEL

HOSTILE = "</script><script>hit=1</script><img src=x onerror=hit=1>"
QUICK = {"max_epochs": 3, "comparison": False}


@pytest.fixture(scope="session")
def open_model(tmp_path_factory):
    """A model with node features, which predicts new nodes; two members."""
    graph, labels = write_institute(tmp_path_factory.mktemp("serve"))
    title = f'"{HOSTILE}"'
    graph.write_text(graph.read_text() + f"<{PREFIX}person/55> {RDFS_LABEL} {title} .\n")
    labels.write_text(labels.read_text().replace("\tvision\n", f"\t{HOSTILE}\n"))
    data = from_rdf(graph, labels, features=("types", "degrees", "literals"), shares=(0.75, 0.0))
    return rgat.fit(data, ensemble=2, **QUICK)


@pytest.fixture(scope="session")
def molecule_model():
    return rgat.fit("molecules", hidden_channels=16, **QUICK)
