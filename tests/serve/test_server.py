"""A real server on a loopback port: the command, the page in a browser, and its end by a signal."""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import uvicorn
from helpers_institute import PREFIX
from uvicorn.server import ServerState

from rgat.serve.server import is_loopback, listen, protocol

PERSON = f"<{PREFIX}person/55>"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
browser_test = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def server(open_model, tmp_path_factory):
    """A process of `rgat serve`, and its address."""
    folder = tmp_path_factory.mktemp("served") / "model"
    open_model.save(folder)
    command = [sys.executable, "-m", "rgat", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    process.address = process.stdout.readline().split(" open ")[-1].split()[0]
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def ask(server, path, body, **headers):
    request = Request(server.address + path, json.dumps(body).encode(), {"content-type": "application/json"} | headers)
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.implicitly_wait(60)
    yield driver
    driver.quit()


def find(browser, selector):
    return browser.find_element("css selector", selector)


def until(browser, condition):
    wait = pytest.importorskip("selenium.webdriver.support.wait")
    stale = pytest.importorskip("selenium.common.exceptions").StaleElementReferenceException
    wait.WebDriverWait(browser, 60, ignored_exceptions=[stale]).until(lambda _: condition())


def test_the_command_answers_requests_for_its_address_only(server, open_model):
    (row,) = ask(server, "/predict", {"nodes": [PERSON]})["predictions"]
    assert row["probabilities"] == pytest.approx(open_model.predict([PERSON]).probabilities[0].tolist(), abs=1e-6)
    with pytest.raises(HTTPError, match="421"):
        ask(server, "/predict", {"nodes": [PERSON]}, host="evil.example")


@browser_test
def test_a_person_finds_a_node_and_sees_prediction_and_reasons(server, browser, open_model):
    hostile = open_model.titles[PERSON]
    assert hostile.startswith("</script><script>hit=1")
    browser.get(server.address)
    search = find(browser, "#of-nodes:not([hidden]) #search")
    search.send_keys("PERSON/55")
    assert find(browser, "#hits [aria-selected=true]").text.startswith(hostile)
    search.send_keys("\ue007")  # Enter
    assert find(browser, "main h2").text == f'person/55 "{hostile}"'
    probabilities = open_model.predict([PERSON]).probabilities[0]
    assert f"with probability {100 * probabilities.max():.1f} %" in find(browser, ".verdict").text
    shown = [value.text.split(" %")[0] for value in browser.find_elements("css selector", ".bars .value")]
    assert [float(text) for text in shown] == pytest.approx(sorted(100 * probabilities, reverse=True), abs=0.051)
    assert find(browser, ".picture svg .root")
    find(browser, "tbody tr")
    reasons = len(browser.find_elements("css selector", "tbody tr"))
    assert reasons > 5
    find(browser, ".picture svg g[role=button]:last-of-type circle").click()  # another node
    assert quote(PERSON, safe="") not in browser.current_url
    browser.back()
    until(browser, lambda: "person/55" in find(browser, "main h2").text)
    assert browser.execute_script("return window.hit") is None
    assert browser.get_log("browser") == []  # nothing was blocked by the policy, nothing failed


@browser_test
def test_a_person_describes_a_new_node_on_a_phone(server, browser):
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get(server.address)
    find(browser, "#of-nodes:not([hidden]) #tab-new").click()
    text = f"<{PREFIX}n> <{PREFIX}type> <{PREFIX}Person> ; <{PREFIX}researches> <{PREFIX}topic/glass> ."
    find(browser, "#triples").send_keys(text)
    find(browser, "#go-new").click()
    assert find(browser, "main h2").text == "n"
    find(browser, "tbody tr")
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    find(browser, "#triples").send_keys(" not a triple")
    find(browser, "#go-new").click()
    problem = find(browser, "#problem:not([hidden])").text
    assert problem.startswith("triples, line 1: not valid turtle")


def test_a_signal_ends_the_service_after_the_requests_at_work(server):
    host, port = server.address.removeprefix("http://").split(":")
    with ExitStack() as stack:
        connections = []
        for number in range(3):  # one explanation alone could be over before the signal
            connections.append(stack.enter_context(socket.create_connection((host, int(port)))))
            body = json.dumps({"node": f"{PREFIX}person/{number}", "top": 1}).encode()
            head = f"POST /explain HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connections[-1].sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while int(re.search(rb"in_flight (\d+)", urlopen(f"{server.address}/metrics").read())[1]) < 2:
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        assert all(b"HTTP/1.1 200" in connection.recv(1000) for connection in connections)
    assert server.wait(60) == 0
    assert server.stdout.read() == "stopped\n"


def test_a_connection_that_sends_no_whole_request_is_closed():
    async def idle(text):
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(lambda *_: None, http=protocol(0.1))
        config.load()
        made = partial(protocol(0.1), config, ServerState(), {})
        async with await loop.create_server(made, "127.0.0.1", 0) as served:
            reader, writer = await asyncio.open_connection(*served.sockets[0].getsockname())
            writer.write(text)
            await asyncio.wait_for(reader.read(), 30)  # until the other side closes
            writer.close()

    for text in (b"", b"GET / HTTP/1.1\r\nHost: x"):
        asyncio.run(idle(text))


def test_a_port_that_is_taken_is_one_sentence():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"127\.0\.0\.1, port {port}: cannot be listened at: .*; choose another"):
            listen("127.0.0.1", port)


def test_loopback_addresses_are_told_from_others():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "example.org")] == [False] * 3
