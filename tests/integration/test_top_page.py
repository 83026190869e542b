"""The page of ``gigl-loader top --web``, seen in a browser."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.cli import top_web
from gigl_loader.cli.cluster_loads import Loads
from tests.support.browser import CHROMIUM, DRIVER, browser, show_as
from tests.support.clusters import addresses_of, servers_of
from tests.support.command_line import COMMAND
from tests.support.learnable import learnable_graph
from tests.support.leftovers import wait_until
from tests.unit.test_top_web import page_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gigl_server.server import StorageServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
    pytest.mark.usefixtures("no_leftovers"),
]
SOON_S = 60.0
MARKUP = "<img src=x onerror=alert(1)>"


@contextmanager
def top_of(server: StorageServer, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``gigl-loader top --web``. Lend its process and the link that it prints."""
    command = [*COMMAND, "top", server.endpoint.control_address, "--web", "0", "--interval", "0.2", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            [link] = re.findall(r"http://\S+", process.stdout.readline())
            yield process, link
        finally:
            process.kill()


@contextmanager
def trained(servers: Sequence[StorageServer]) -> Iterator[None]:
    """Train over the servers meanwhile."""
    ends = threading.Event()
    with (
        RemoteDistDataset.connect(addresses_of(servers)[0]) as dataset,
        DistNeighborLoader(dataset, [5], batch_size=20, name=MARKUP) as loader,
    ):

        def train() -> None:
            while not ends.is_set():
                list(loader)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join(SOON_S)


def table(driver: Any, name: str) -> list[dict[str, str]]:
    """Return the rows of a table on the page, by title of the column."""
    script = """
        const [head, ...rows] = [...document.querySelectorAll(`#${arguments[0]} tr`)].map((row) =>
          [...row.cells].map((cell) => cell.textContent));
        return rows.map((row) => Object.fromEntries(row.map((cell, place) => [head[place], cell])));
    """
    found: list[dict[str, str]] = driver.execute_script(script, name)
    return found


def text(driver: Any, name: str) -> str:
    return str(driver.execute_script("return document.getElementById(arguments[0]).innerText", name))


def errors(driver: Any) -> list[str]:
    """Return what the console has. A refused request is no error of the page."""
    logged = [each["message"] for each in driver.get_log("browser")]
    return [each for each in logged if "the server responded with a status of" not in each]


def test_the_page_shows_the_cluster_live(tmp_path: Path) -> None:
    graph = learnable_graph(tmp_path / "graph", num_partitions=2)
    with (
        servers_of(graph, 2, show_names=True) as servers,
        top_of(servers[0]) as (process, link),
        browser(tmp_path / "profile") as driver,
    ):
        show_as(driver, width=1280, dark=False)
        with trained(servers):
            driver.get(link)

            def has_rates() -> bool:
                rows = table(driver, "servers")
                return len(rows) == 2 and all(float(row["batches/s"].strip("-") or 0) > 0 for row in rows)

            assert wait_until(has_rates, seconds=SOON_S), table(driver, "servers")
            rows = table(driver, "servers")
            assert [row["server"] for row in rows] == [
                f"{rank} {address}" for rank, address in enumerate(addresses_of(servers))
            ]
            assert [row["state"] for row in rows] == ["ready", "ready"]
            assert [row["partitions"] for row in rows] == ["0", "1"]
            assert "servers ready\n2 of 2" in text(driver, "totals")
            assert all(MARKUP in row["channel"] for row in table(driver, "channels"))
            assert {(row["server"], row["calls to"]) for row in table(driver, "peers")} == {
                ("0", "1"),
                ("1", "0"),
            }
            assert driver.execute_script("return document.images.length") == 0
        assert driver.current_url == link.partition("#")[0], "the address bar keeps no token"
        driver.refresh()
        assert wait_until(lambda: len(table(driver, "servers")) == 2, seconds=SOON_S)
        assert errors(driver) == []

        servers[1].close()
        assert wait_until(lambda: table(driver, "servers")[1]["state"] == "away", seconds=SOON_S)
        assert "partition 1 has no holder that answers" in text(driver, "warnings")
        assert "servers ready\n1 of 2" in text(driver, "totals")

        process.send_signal(signal.SIGINT)
        assert process.wait(SOON_S) == 0
        assert wait_until(lambda: "has it ended?" in text(driver, "status"), seconds=SOON_S)


@pytest.mark.parametrize(
    "bad", ['{"servers": NaN}', "{}", "[", '{"servers": [], "warnings": [], "graph": 1}']
)
def test_a_look_that_cannot_be_shown_does_not_end_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    texts, good = [bad], json.dumps(Loads(at=1.0, graph="f" * 64, servers=()).to_json())
    monkeypatch.setattr(top_web._Cached, "read", lambda _: texts[0])
    with page_of(interval_s=0.1) as page, browser(tmp_path / "profile") as driver:
        driver.get(page.link)
        assert wait_until(lambda: "this look cannot be shown" in text(driver, "status"), seconds=SOON_S)
        texts[0] = good
        assert wait_until(lambda: "as of" in text(driver, "status"), seconds=SOON_S)
        assert text(driver, "graph") == "f" * 12
        assert errors(driver) == []


def test_a_page_without_the_token_says_what_to_open(tmp_path: Path) -> None:
    graph = learnable_graph(tmp_path / "graph", num_partitions=1)
    with (
        servers_of(graph, 1) as servers,
        top_of(servers[0]) as (_, link),
        browser(tmp_path / "profile") as driver,
    ):
        page = link.partition("#")[0]
        for wrong in (page, f"{page}#token=wrong-0123456789abcdef"):
            driver.get(wrong)
            assert wait_until(lambda: "open the link" in text(driver, "status"), seconds=SOON_S)
            assert table(driver, "servers") == []
        driver.get(link)  # In the same tab, where only the fragment differs.
        assert wait_until(lambda: len(table(driver, "servers")) == 1, seconds=SOON_S)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_screens_and_is_readable_in_both_color_schemes(tmp_path: Path, width: int) -> None:
    graph = learnable_graph(tmp_path / "graph", num_partitions=2)
    with (
        servers_of(graph, 2) as servers,
        top_of(servers[0]) as (_, link),
        browser(tmp_path / "profile") as driver,
    ):
        for dark in (False, True):
            show_as(driver, width=width, dark=dark)
            driver.get("about:blank")  # Else the second link differs from the page's by its fragment alone.
            driver.get(link)
            assert wait_until(lambda: len(table(driver, "servers")) == 2, seconds=SOON_S)
            driver.save_screenshot(tmp_path / f"{width}-{'dark' if dark else 'light'}.png")
            assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
            contrasts = driver.execute_script(CONTRASTS)
            assert len(contrasts) > 60
            assert min(contrasts) >= 4.5, dark


CONTRASTS = """
    const part = (c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const light = (color) => {
      const [r, g, b] = color.match(/[\\d.]+/g).map(Number);
      return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const behind = (element) => {
      const color = getComputedStyle(element).backgroundColor;
      return color === "rgba(0, 0, 0, 0)" ? behind(element.parentElement) : color;
    };
    return [...document.querySelectorAll("h1, h2, p, dt, dd, th, td, td span")].map((element) => {
      const pair = [light(getComputedStyle(element).color), light(behind(element))];
      return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    });
"""
"""Contrast of each text to what is behind it, as WCAG 2 defines it: 4.5 at least."""
