import pytest
from helpers_institute import write_institute

import rgat
from rgat.data import from_rdf

QUICK = {"max_epochs": 25, "patience": 10, "comparison": False}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return write_institute(tmp_path_factory.mktemp("institute"))


@pytest.fixture(scope="session")
def node_data(files):
    return from_rdf(files[0], files[1], features=(), shares=(0.75, 0.0))


@pytest.fixture(scope="session")
def node_model(node_data):
    return rgat.fit(node_data, ensemble=2, **QUICK)


@pytest.fixture(scope="session")
def graph_model():
    return rgat.fit("molecules", ensemble=2, hidden_channels=16, max_epochs=6, comparison=False)
