"""The page in a real browser, from a file: sorting, filtering, hovering, a phone's screen and print."""

import base64
import json
import re
import shutil

import made_up
import pytest

from rgat.report import write_report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium on this machine")


@pytest.fixture
def page(report):
    return report / "first" / "report.html"


@pytest.fixture(scope="module")
def driver():
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument("--force-prefers-reduced-motion")  # a click must not meet a page that still scrolls
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    from selenium.webdriver.chrome.service import Service

    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def opened(driver, page):
    """The page, freshly loaded at desktop size."""
    resize(driver, 1280, 900)
    driver.get(page.as_uri())
    return driver


def resize(driver, width, height):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def script(driver, text, *arguments):
    return driver.execute_script(f"return {text}", *arguments)


def column(driver, table, number):
    """Texts of one column of the visible lines, groups left out."""
    return script(
        driver,
        "[...document.querySelectorAll(arguments[0] + ' tbody tr:not(.group)')]"
        ".filter(row => row.offsetParent).map(row => row.cells[arguments[1]].innerText.trim())",
        table,
        number,
    )


def test_nothing_is_loaded_and_nothing_is_wrong(opened):
    assert [entry for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert asked
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert opened.title == "Results: AIFB, Tox21"


def test_a_script_in_a_name_does_not_run(driver, tmp_path):
    hit = '"><script>window.hit=1</script>'
    models = {hit: 0.8, "</svg><img src=x onerror=hit=1>": 0.7}
    folder = made_up.write_study(tmp_path / "runs", {"RGCN": (0.9, None, 0.01)}, 2, 0, baselines=models, data=hit)
    driver.get(write_report([folder], tmp_path / "report").as_uri())
    assert script(driver, "window.hit") is None
    assert len(driver.find_elements("css selector", "script")) == 1
    assert driver.find_elements("css selector", "img") == []
    assert driver.title == f"Results: {hit}"
    study = script(driver, "document.querySelector('input[data-pick=study]').value")
    section = driver.find_element("css selector", f"section[id='{study}']")
    assert section.is_displayed()
    driver.find_element("css selector", "input[data-pick=study]").click()
    assert not section.is_displayed()


def test_a_click_sorts_and_two_more_bring_the_papers_order_back(opened):
    table = "#table-results-nodes"
    original = column(opened, table, 0)
    assert original[:2] == ["WL", "RGCN (ours)"]
    button = opened.find_element("css selector", f"{table} thead th:nth-child(2) button")
    head = opened.find_element("css selector", f"{table} thead th:nth-child(2)")
    for order in ("descending", "ascending"):
        button.send_keys("\ue007")  # by keyboard
        assert head.get_attribute("aria-sort") == order
        means = [float(text.split()[0]) for text in column(opened, table, 1)]
        assert means == sorted(means, reverse=order == "descending")
        assert len(means) == 10
    assert script(opened, "getComputedStyle(document.querySelector(arguments[0] + ' .group')).display", table) == "none"
    button.click()
    assert head.get_attribute("aria-sort") is None
    assert column(opened, table, 0) == original


def test_unchecking_hides_a_model_and_a_data_set_everywhere(opened):
    def visible(selector):
        return script(
            opened,
            "[...document.querySelectorAll(arguments[0])].filter(e => e.getClientRects().length).length",
            selector,
        )

    model = '[data-model="additive ARGAT"]'
    assert visible(f"svg {model}") > 10
    assert visible(f"tr{model}") > 5
    opened.find_element("css selector", 'input[value="additive ARGAT"]').click()
    assert visible(model) == 0
    assert visible('svg [data-model="RGCN"]') > 5
    assert visible("#tox21") == 1
    opened.find_element("css selector", 'input[value="tox21"]').click()
    assert visible('[data-study="tox21"]') == 0
    assert visible("#aifb") == 1
    for value in ("additive ARGAT", "tox21"):
        opened.find_element("css selector", f'input[value="{value}"]').click()
    assert visible(model) > 15
    for value in ("additive WIRGAT", "additive ARGAT"):  # a group without lines has no heading
        opened.find_element("css selector", f'input[value="{value}"]').click()
    groups = opened.find_elements("css selector", "#table-results-nodes .group")
    assert [group.is_displayed() for group in groups] == [True, False, True]


def hover(driver, chart, x, y):
    """Move the pointer to a point of a chart, in shares of its size."""
    return script(
        driver,
        "(() => { const svg = document.querySelector(arguments[0] + ' svg');"
        "svg.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const box = svg.getBoundingClientRect(), at = {clientX: box.x + arguments[1] * box.width,"
        "clientY: box.y + arguments[2] * box.height, bubbles: true};"
        "document.elementFromPoint(at.clientX, at.clientY).dispatchEvent(new PointerEvent('pointermove', at));"
        "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.innerText; })()",
        chart,
        x,
        y,
    )


def test_hovering_tells_values(opened):
    tips = {hover(opened, "#chart-aifb-bars", 0.45, y / 40) for y in range(36)}
    assert len([tip for tip in tips if re.fullmatch(r".+: \d\d\.?\d* ± [\d.]+, \d runs", tip)]) == 10
    tips = {hover(opened, "#chart-aifb-distribution-all", 0.6, y / 20) for y in range(2, 14)} - {""}
    assert tips
    for tip in tips:
        name, x, y = re.fullmatch(r"(.+): mean validation accuracy, % ([\d.]+), share of trials ([\d.]+)", tip).groups()
        assert name in made_up.EQUAL
        assert 50 < float(x) < 100
        assert 0 <= float(y) <= 1
    assert "outperforms" in hover(opened, "#chart-aifb-p-values", 0.6, 0.3)
    assert hover(opened, "#chart-aifb-bars", 0.999, 0.999) == ""


def test_axes_legends_and_values_are_there(opened):
    query = "[...document.querySelectorAll(arguments[0] + ' text')].map(text => text.textContent)"
    texts = script(opened, query, "#chart-aifb-distribution-all")
    for expected in ("share of trials", "mean validation accuracy, %", *made_up.EQUAL):
        assert expected in texts
    bars = script(opened, query, "#chart-aifb-bars")
    assert {"RGCN (ours)", "multiplicative C-ARGAT"} <= set(bars)
    assert len(opened.find_elements("css selector", "#chart-aifb-p-values [data-tip]")) == 81
    assert len(opened.find_elements("css selector", "svg[role=img][aria-label]")) >= 12


def test_no_text_of_a_chart_is_cut_off(opened):
    """Each label lies inside its chart."""
    clipped = script(
        opened,
        "[...document.querySelectorAll('.chart svg')].flatMap(svg => { const b = svg.getBoundingClientRect();"
        "return [...svg.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();"
        "return r.left < b.left - 2 || r.right > b.right + 2 || r.top < b.top - 2 || r.bottom > b.bottom + 2"
        "}).map(t => t.textContent) })",
    )
    assert clipped == []


def test_the_page_fits_a_phone(opened, page):
    resize(opened, 390, 844)
    opened.get(page.as_uri())
    assert script(opened, "document.documentElement.scrollWidth") == 390
    assert script(opened, "document.querySelector('.menu').open") is False
    widths = script(
        opened, "[...document.querySelectorAll('.scroll, .chart')].map(e => e.getBoundingClientRect().right)"
    )
    assert max(widths) <= 390
    assert script(opened, "document.querySelector('#table-results-nodes .scroll').scrollWidth") > 390  # scrolls inside


def test_colours_follow_the_system_and_the_button(opened, page):
    def paper():
        return script(opened, "getComputedStyle(document.body).backgroundColor")

    seen = {}
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        seen[scheme] = paper()
    assert seen["light"] != seen["dark"]
    button = opened.find_element("css selector", ".theme")
    for name in ("light", "dark"):
        button.click()
        assert (button.text, paper()) == (f"Colours: {name}", seen[name])
    opened.get(page.as_uri())
    assert paper() == seen["dark"]  # remembered
    opened.find_element("css selector", ".theme").click()
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_print_has_every_chart_whole(opened):
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    resize(opened, 688, 1000)  # the width of A4 between its margins
    boxes = script(
        opened,
        "[...document.querySelectorAll('.chart')].map(c => [c.getBoundingClientRect().right,"
        "c.getBoundingClientRect().height, getComputedStyle(c).breakInside])",
    )
    assert len(boxes) >= 12
    for right, height, rule in boxes:
        assert right <= 688
        assert height < 1000  # one page holds it
        assert rule == "avoid"
    query = "[...document.querySelectorAll('.scroll table')].map(table => table.getBoundingClientRect().right)"
    tables = script(opened, query)
    assert max(tables) <= 690
    assert script(opened, "getComputedStyle(document.querySelector('aside')).display") == "none"
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
