import dataclasses
import shutil

import pytest
import torch

import rgat
from rgat.data import NodeData
from rgat.predictor import explorer
from rgat.predictor.explorer import write_explorer
from rgat.predictor.text import SATURATED

PERSON = "http://institute.example/person/3"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
browser_test = pytest.mark.skipif(
    CHROMIUM is None or shutil.which("chromedriver") is None, reason="no Chromium with chromedriver on this machine"
)


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,800",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def find(browser, selector):
    return browser.find_elements("css selector", selector)


def wait_until(browser, holds):
    """Wait for the node that was walked to: the page draws it when the address has changed, after the click."""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 10, 0.02, [StaleElementReferenceException]).until(lambda _: holds())


def opened(browser, path):
    browser.get("about:blank")
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    return browser


@browser_test
def test_the_page_opens_from_a_file_and_a_click_moves_to_a_neighbour(tmp_path, browser, node_model):
    path = tmp_path / "e.html"
    write_explorer(node_model, path, PERSON)
    opened(browser, path)
    assert find(browser, "h1")[0].text == "person/3"
    assert PERSON in find(browser, ".full")[0].text
    graph, node = node_model.data.graph, node_model.find(PERSON)
    source, target = graph.edge_index
    incoming = int(((target == node) & (source != node)).sum())
    assert len(find(browser, "line")) == min(incoming, 24)
    widths = [float(line.get_attribute("stroke-width")) for line in find(browser, "line")]
    assert max(widths) == pytest.approx(10)
    other = next(g for g in find(browser, "g.node:not(.centre)") if "topic/" in g.get_attribute("aria-label"))
    name = other.get_attribute("aria-label")
    other.click()
    wait_until(browser, lambda: find(browser, ".full")[0].text == name)
    find(browser, "#back")[0].click()
    wait_until(browser, lambda: PERSON in find(browser, ".full")[0].text)
    search = find(browser, "#search")[0]
    search.send_keys("topic/glass")
    search.send_keys("\ue007")  # Enter
    wait_until(browser, lambda: find(browser, "h1")[0].text == "glass")
    assert browser.get_log("browser") == []


@browser_test
def test_a_relation_can_be_hidden(tmp_path, browser, node_model):
    path = tmp_path / "e.html"
    write_explorer(node_model, path, PERSON)
    opened(browser, path)
    before = len(find(browser, "line"))
    find(browser, "button.row")[0].click()
    assert len(find(browser, "line")) < before
    assert len(find(browser, "button.row.off")) == 1
    find(browser, "button.row.off")[0].click()
    assert len(find(browser, "line")) == before


@pytest.fixture(scope="module")
def hub_model():
    """A node with 5,000 neighbours."""
    count = 5000
    leaves = torch.arange(1, count + 1)
    edge_index = torch.stack([leaves, torch.zeros_like(leaves)])
    graph = rgat.RelationalGraph(edge_index, leaves % 3, num_nodes=count + 1, num_relations=3)
    labels = torch.full((count + 1,), -1)
    labels[:40] = torch.arange(40) % 2
    data = NodeData(
        name="hub",
        graph=graph.with_inverses(),
        x=None,
        labels=labels,
        classes=("even", "odd </script>"),
        train=torch.arange(20),
        valid=torch.arange(20, 40),
        test=torch.arange(0),
        node_names=tuple(f"leaf {i} <b>&" for i in range(count + 1)),
        relation_names=tuple(f"{prefix}r{i}" for prefix in ("", "inverse of ") for i in range(3)),
    )
    return rgat.fit(data, max_epochs=1, comparison=False)


@browser_test
def test_a_node_with_5000_neighbours_stays_usable(tmp_path, browser, hub_model):
    path = tmp_path / "hub.html"
    write_explorer(hub_model, path)
    opened(browser, path)
    assert find(browser, "#shown")[0].text == "1 to 24 of 5,000 edges, most attention first"
    assert len(find(browser, "g.node")) == 25
    find(browser, "#next")[0].click()
    assert find(browser, "#shown")[0].text == "25 to 48 of 5,000 edges, most attention first"
    assert len(find(browser, "svg *")) < 200  # what is drawn does not grow with the neighbourhood
    find(browser, "g.node:not(.centre)")[3].click()
    wait_until(browser, lambda: "leaf" in find(browser, "h1")[0].text)
    assert "odd </script>" in find(browser, "aside")[0].text
    assert browser.get_log("browser") == []


def test_of_a_large_graph_the_nearest_edges_are_taken(monkeypatch, tmp_path, node_model):
    monkeypatch.setattr(explorer, "MAX_EDGES", 50)
    node = node_model.find(PERSON)
    edges = explorer._nearest(node_model.data.graph.edge_index, node, 50)
    source, target = node_model.data.graph.edge_index[:, edges]
    assert len(edges) == 50
    assert node in target.tolist()
    assert (source != target).all()
    line = torch.tensor([[0, 1, 2], [1, 2, 3]])  # nothing leads on to 0
    assert explorer._nearest(line, 1, 2).tolist() == [0]
    write_explorer(node_model, tmp_path / "e.html", PERSON)
    with pytest.raises(ValueError, match=r"must go to a file that ends in \.html"):
        write_explorer(node_model, tmp_path / "e.pdf", PERSON)


@browser_test
def test_the_page_of_a_molecule_opens(tmp_path, browser, graph_model):
    path = tmp_path / "m.html"
    graph_model.explain("c1ccccc1C(=O)NC").save(path)
    opened(browser, path)
    assert len(find(browser, "figure svg")) == 2
    assert len(find(browser, "tbody tr")) == 20


@browser_test
def test_the_page_shows_the_effects_at_its_start_and_how_good_the_model_is(tmp_path, browser, node_model):
    path = tmp_path / "e.html"
    explanation = node_model.explain(PERSON)
    write_explorer(node_model, path, PERSON, explanation)
    opened(browser, path)
    rows = find(browser, "button.effect")
    largest = max(explanation.reasons, key=lambda reason: abs(reason.log_odds))
    shown = [float(row.find_element("css selector", ".number").text) for row in rows]
    is_saturated = explanation.probability >= SATURATED
    assert shown[0] == pytest.approx(largest.log_odds if is_saturated else 100 * largest.effect, abs=0.06)
    assert len(rows) == min(12, len({row.text for row in rows})), "a triple and its inverse are one row"
    assert rows[0].text.startswith("person/")
    panel = find(browser, "aside")[0].text
    assert f"({node_model.report['right']} of {node_model.report['tested']}; 95 % interval" in panel
    assert "macro-F1" in panel
    confusion = find(browser, "table")[0].find_elements("css selector", "tr")[1:]
    cells = [[cell.text for cell in line.find_elements("css selector", "td")] for line in confusion]
    assert [[int(cell) for cell in line[2:]] for line in cells] == node_model.report["confusion"]
    find(browser, "g.node:not(.centre)")[0].click()
    wait_until(browser, lambda: find(browser, "button.effect") == [])
    assert "Known for person/3 only; for this node: rgat explain MODEL" in find(browser, "aside")[0].text
    assert browser.get_log("browser") == []


def test_a_model_of_an_earlier_version_has_a_page_too(tmp_path, node_model):
    report = {name: value for name, value in node_model.report.items() if name in ("metric", "scores")}
    write_explorer(dataclasses.replace(node_model, report=report), tmp_path / "e.html", PERSON)
    assert '"quality": {"recall": []}' in (tmp_path / "e.html").read_text()


@browser_test
def test_the_page_of_a_number_shows_its_value_ranges_and_effects(tmp_path, browser, files):
    graph, labels = files
    rows = [line.split("\t") for line in labels.read_text().splitlines()[1:]]
    numbers = tmp_path / "numbers.tsv"
    numbers.write_text(
        "person\tage (years)\n" + "".join(f"{node}\t{len(group)}.{n}\n" for n, (node, group) in enumerate(rows))
    )
    data = rgat.data.from_rdf(graph, numbers, features=(), shares=(0.75, 0.0))
    model = rgat.fit(data, model="RGCN", comparison=False, max_epochs=1)
    path = tmp_path / "e.html"
    write_explorer(model, path, PERSON)
    opened(browser, path)
    panel = find(browser, "#panel")[0].text
    value = model.predict([PERSON]).of("age (years)")[0]
    assert f"age (years) {value:.4g} years" in panel
    assert "labelled" in panel
    assert "Change of age (years) without a triple. Green triples raise it" in panel
    assert panel.count(" to ") >= 4  # ranges of the colours
    assert "R2" in panel
    assert len(find(browser, "line")) > 0
