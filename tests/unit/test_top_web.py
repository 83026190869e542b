"""``gigl-loader top --web``: who gets what from its server. A browser looks at the page in another test."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

from gigl_loader.cli import top_web
from gigl_loader.cli.cluster_loads import Loads, Looker, ServerLoad
from gigl_loader.cli.top_web import TopServer
from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.tokens import authorization
from tests.support.clusters import addresses_of, servers_of
from tests.support.command_line import COMMAND, run_here
from tests.support.leftovers import wait_until
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

AWAY = ServerLoad(
    address="10.0.0.7:7070", partitions=(0, 1), load={}, error="nothing listens there", away=True
)
LOADS = Loads(at=7.5, graph="0" * 64, servers=(AWAY,))


@contextmanager
def page_of(look: Callable[[], Loads] = lambda: LOADS, interval_s: float = 0.0) -> Iterator[TopServer]:
    with TopServer(look, port=0, interval_s=interval_s) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join(20)


def token_of(server: TopServer) -> str:
    [token] = parse_qs(urlsplit(server.link).fragment)["token"]
    return token


def get(
    server: TopServer, path: str, *tokens: str, host: str = "", method: str = "GET"
) -> tuple[int, str, Any]:
    """Return status, text and headers of a reply."""
    client = http.client.HTTPConnection(server.address, timeout=20)
    client.putrequest(method, path, skip_host=bool(host))
    if host:
        client.putheader("Host", host)
    for token in tokens:
        client.putheader("Authorization", authorization(token))
    client.endheaders()
    with client.getresponse() as reply:
        found = reply.status, reply.read().decode(), reply.headers
    client.close()
    return found


def test_loads_are_those_of_json() -> None:
    with page_of() as server:
        status, text, headers = get(server, "/loads", token_of(server))
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(text) == LOADS.to_json()
    assert [each["text"] for each in json.loads(text)["warnings"]] == [
        "0 10.0.0.7:7070: nothing listens there",
        "partitions 0, 1 have no holder that answers",
    ]


@pytest.mark.usefixtures("no_leftovers")
def test_loads_of_a_cluster_are_what_top_prints(tmp_path: Path) -> None:
    with servers_of(write_graph(tmp_path / "graph"), 2) as servers:
        first, *_ = addresses_of(servers)
        with Looker(first, Caller(), 20.0) as looker, page_of(looker.look) as page:
            found = json.loads(get(page, "/loads", token_of(page))[1])
        printed = json.loads(run_here("top", first, "--json").stdout)
    assert [each["address"] for each in found["servers"]] == addresses_of(servers)
    assert shape(found) == shape(printed)


def test_the_command_prints_the_link_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    with servers_of(write_graph(tmp_path / "graph"), 1) as servers:
        command = [*COMMAND, "top", *addresses_of(servers), "--web", "0", "--interval", "7"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            [link] = re.findall(r"http://127\.0\.0\.1:\d+/#token=\S+&interval=7", process.stdout.readline())
            with urllib.request.urlopen(link.partition("#")[0], timeout=20) as reply:
                assert "<title>gigl-loader top</title>" in reply.read().decode()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


def shape(document: Any) -> Any:
    """Return a document with the types of its numbers in their place: times and counts change."""
    if isinstance(document, dict):
        return {name: shape(value) for name, value in document.items()}
    if isinstance(document, list):
        return [shape(each) for each in document]
    return type(document) if isinstance(document, (int, float)) else document


def test_loads_need_the_token_and_the_page_needs_none() -> None:
    with page_of() as server, page_of() as other:
        token = token_of(server)
        for wrong in ((), (token[:-1],), (token_of(other),), (token, token)):
            status, text, headers = get(server, "/loads", *wrong)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert text == "open the link that gigl-loader top prints\n"
        assert get(server, f"/loads?token={token}")[0] == 401
        for path in ("/", "/page.js", "/page.css"):
            status, text, _ = get(server, path)
            assert status == 200
            assert token not in text
            assert "10.0.0.7" not in text
        assert get(server, "/index.html")[0] == get(server, "/../top.py")[0] == 404
        assert get(server, "/loads", token, method="POST")[0] == 501


def test_only_this_machine_reaches_it() -> None:
    with page_of() as server:
        host, _, port = server.address.rpartition(":")
        assert host == "127.0.0.1"
        listening = [
            each.laddr.ip
            for each in psutil.Process().net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr.port == int(port)
        ]
        assert listening == ["127.0.0.1"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:80", "evil@localhost", ""]
)
def test_a_page_of_another_site_whose_name_leads_here_is_refused(host: str) -> None:
    with page_of() as server:
        for path in ("/", "/loads"):
            assert get(server, path, token_of(server), host=host or " ")[0] == 421


@pytest.mark.parametrize("host", ["localhost:8000", "LOCALHOST", "127.0.0.1:9"])
def test_a_tunnel_may_have_another_port(host: str) -> None:
    with page_of() as server:
        assert get(server, "/loads", token_of(server), host=host)[0] == 200


def test_the_page_loads_nothing_from_elsewhere() -> None:
    with page_of() as server:
        texts = []
        for path in ("/", "/page.js", "/page.css"):
            _, text, headers = get(server, path)
            assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
            assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
            texts.append(text)
    assert set(re.findall(r"https?://[^\s\"'`]+", "".join(texts))) == {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in "".join(texts)  # Names of loaders are text of trainers.


def test_a_cluster_that_does_not_answer_is_told_and_asked_again() -> None:
    fails = [True]

    def look() -> Loads:
        if fails[0]:
            raise StorageUnavailable("storage server 10.0.0.7:7070: nothing listens\nthere")
        return LOADS

    with page_of(look) as server:
        token = token_of(server)
        assert get(server, "/loads", token)[:2] == (
            502,
            "storage server 10.0.0.7:7070: nothing listens there\n",
        )
        fails[0] = False
        assert get(server, "/loads", token)[0] == 200


def test_pages_share_a_look() -> None:
    looks = []

    def look() -> Loads:
        looks.append(1)
        return LOADS

    with page_of(look, interval_s=3600.0) as server:
        assert looks == []
        for _ in range(3):
            assert get(server, "/loads", token_of(server))[0] == 200
    assert len(looks) == 1


def test_a_silent_connection_keeps_nobody_out_and_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_web._Handler, "timeout", 0.2)
    with page_of() as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as silent:
            assert get(server, "/loads", token_of(server))[0] == 200
            assert wait_until(lambda: silent.recv(1) == b"")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--web", "0", "--json"], "--once, --json and --web exclude each other"),
        (["--once", "--json"], "--once, --json and --web exclude each other"),
        (["--web", "65536"], "--web"),
        (["--web", "here"], "--web"),
    ],
)
def test_options_that_are_mistakes(arguments: list[str], told: str) -> None:
    done = run_here("top", "127.0.0.1:1", *arguments)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_cluster_that_does_not_answer_at_first_is_an_error() -> None:
    done = run_here("top", "127.0.0.1:1", "--web", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing listens there" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_named() -> None:
    with page_of() as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(OSError, match=rf"^--web: 127\.0\.0\.1:{port}: Address already in use$"):
            TopServer(lambda: LOADS, port=port, interval_s=1.0)
