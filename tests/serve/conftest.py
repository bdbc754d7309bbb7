import pytest
from helpers_institute import write_institute

import rgat
from rgat.data import from_rdf

QUICK = {"max_epochs": 3, "comparison": False}


@pytest.fixture(scope="module")
def open_model(tmp_path_factory):
    """A model with node features, which predicts new nodes; two members."""
    graph, labels = write_institute(tmp_path_factory.mktemp("serve"))
    data = from_rdf(graph, labels, features=("types", "degrees", "literals"), shares=(0.75, 0.0))
    return rgat.fit(data, ensemble=2, **QUICK)


@pytest.fixture(scope="module")
def molecule_model():
    return rgat.fit("molecules", hidden_channels=16, **QUICK)
