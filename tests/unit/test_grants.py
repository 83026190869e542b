"""Rights and quotas of tokens: their text, what is refused of it, and what they allow on a server."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import SamplingError
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import build_graph
from gigl_loader.rpc.control import ControlClient
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.peer import check_peer
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.remote_store import fetch_manifest
from gigl_loader.rpc.replicas import connection_to
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tokens import EVERYTHING, Grant, Token, parse_grant, parse_tokens
from gigl_server.admission import Access, Identity
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.sources import PLAN, small_graph, small_tables
from tests.support.store_service import JOB, OTHER_JOB, Trainer, service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_server.server import StorageServer

SECRET, OTHER, THIRD = "ours-0123456789abcdef", "theirs-0123456789abcdef", "third-0123456789abcdef"
DIGEST = small_graph().manifest.digest
GRANTS = st.builds(
    Grant,
    graph=st.lists(st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True), max_size=3).map(tuple),
    digest=st.lists(st.from_regex(r"[0-9a-f]{12,64}", fullmatch=True), max_size=3).map(tuple),
    jobs=st.none() | st.integers(1, 10**6),
    channels=st.none() | st.integers(1, 10**6),
    frames=st.none() | st.integers(1 << 20, 1 << 50),
    share=st.floats(0.001, 1000),
)


def text_of(grant: Grant) -> str:
    words = [f"graph={name}" for name in grant.graph] + [f"digest={each}" for each in grant.digest]
    quotas = {name: getattr(grant, name) for name in ("jobs", "channels", "frames")}
    words += [f"{name}={value}" for name, value in quotas.items() if value is not None]
    return " ".join([*words, f"share={grant.share!r}"])


# --- the text


@given(grant=GRANTS, named=st.booleans())
def test_a_line_says_what_its_token_may_do(*, grant: Grant, named: bool) -> None:
    line = f"{'team ' if named else ''}{SECRET} {text_of(grant)}"
    [token] = parse_tokens(line)
    assert token == Token(name="team" if named else "1", secret=SECRET, grant=grant)
    assert Grant.from_json(json.loads(json.dumps(grant.to_json()))) == grant
    credentials = Credentials(
        token=SECRET, token_grant=grant, other_tokens=(Token(name="2", secret=OTHER, grant=grant),)
    )
    assert Credentials.from_json(json.loads(json.dumps(credentials.to_json()))) == credentials


def test_none_said_is_all() -> None:
    assert [each.grant for each in parse_tokens(f"a {SECRET}\n{OTHER}")] == [EVERYTHING, EVERYTHING]
    assert EVERYTHING.reads(name="any", digest=DIGEST)


def test_units_are_those_of_options() -> None:
    assert parse_grant(["frames=2GB"]).frames == 2 << 30


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"team {SECRET} jobs=0", "line 2: jobs must be at least 1, got 0"),
        (f"team {SECRET} jobs=four", "line 2: jobs must be a whole number, got 'four'"),
        (f"team {SECRET} jobs=1 jobs=2", "line 2: jobs is there twice"),
        (f"team {SECRET} jobs=1 colour=2", "line 2: no 'colour' among graph=, digest=, jobs="),
        (f"team {SECRET} jobs=1 {OTHER}", "line 2: after a token come graph="),
        (f"team {SECRET} share=nan", r"line 2: share must lie in \[0.001, 1000\], got nan"),
        (f"team {SECRET} share=0", "line 2: share must lie"),
        (f"team {SECRET} frames=1KB", "line 2: frames must be at least 1048576"),
        (f"team {SECRET} frames=much", "line 2: frames must be a size"),
        (f"team {SECRET} graph=../etc", "line 2: graph is the name of a graph's folder"),
        (f"team {SECRET} graph=", "line 2: graph is the name of a graph's folder"),
        (f"team {SECRET} digest=0a1b2c", "line 2: digest is the beginning of a graph's digest: 12 to 64"),
        (f"team {SECRET} {OTHER} jobs=1", "line 2: write NAME TOKEN"),
        (f"jobs=1 {SECRET} jobs=1", "line 2: the name of a token"),
    ],
)
def test_a_mistake_names_file_and_line(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# teams\n{line}\n")
    path.chmod(0o600)
    with pytest.raises(ValueError, match=rf"^{path}: {told}") as refused:
        Credentials.from_files(token=path)
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)
    assert OTHER not in str(refused.value)


# --- rights


@pytest.mark.parametrize(
    ("grant", "reads"),
    [
        (Grant(), True),
        (Grant(graph=("papers",)), True),
        (Grant(graph=("paper", "papers2", "PAPERS")), False),
        (Grant(digest=(DIGEST[:12],)), True),
        (Grant(digest=(DIGEST,)), True),
        (Grant(digest=("0" * 12,)), False),
        (Grant(graph=("ads",), digest=(DIGEST[:20],)), True),
    ],
)
def test_a_right_names_the_folder_or_the_digest(grant: Grant, *, reads: bool) -> None:
    credentials = Credentials(token=SECRET, other_tokens=(Token(name="ads", secret=OTHER, grant=grant),))
    access = Access(credentials, graph="papers", digest=DIGEST)
    access.check("1")
    if reads:
        access.check("ads")
        return
    with pytest.raises(Refusal, match=r"^token ads has no right to read this graph$") as refused:
        access.check("ads")
    assert refused.value.kind is RefusalKind.FORBIDDEN


def test_a_token_that_was_taken_away_has_no_right() -> None:
    limited = Token(name="ads", secret=OTHER, grant=Grant(graph=("ads",)))
    before = Credentials(token=SECRET, other_tokens=(limited,))
    after = Credentials(token=SECRET, other_tokens=(Token(name="new", secret=THIRD),))
    access = Access(before, graph="papers", digest=DIGEST)
    access.renew(after, before=before)
    access.check("new")
    with pytest.raises(Refusal):
        access.check("ads")
    access.renew(after)
    with pytest.raises(Refusal):
        access.check("ads")
    Access(Credentials(token=""), graph="papers", digest=DIGEST).check("")


def test_servers_must_be_able_to_show_each_other_the_first_token() -> None:
    first = Credentials(token=SECRET, token_name="ads", token_grant=Grant(graph=("ads",)))
    with pytest.raises(ValueError, match=r"^token ads, the first one, which servers show each other"):
        Access(first, graph="papers", digest=DIGEST)


def test_servers_show_each_other_no_token_of_limited_rights() -> None:
    others = (Token(name="b", secret=OTHER, grant=Grant(graph=("x",))), Token(name="c", secret=THIRD))
    assert Credentials(token=SECRET, other_tokens=others).caller().other_tokens == (THIRD,)


def serving(folder: Path, *lines: str) -> StorageServer:
    """Return a server of the small graph with these tokens."""
    path = folder / "tokens"
    path.write_text("\n".join((f"servers {SECRET}", *lines)))
    path.chmod(0o600)
    options = ServeOptions(graph_dir="small", listen="127.0.0.1:0", workers=1, token_file=str(path))
    return build_storage_server(options, graph=small_graph())


def refusals(endpoint: Endpoint, secret: str, *, digest: str = DIGEST) -> list[str]:
    """Return what a caller with a token is told at the control port, the data port and the handshake."""
    caller = Caller(token=secret)
    connection = connection_to(endpoint, caller, timeout_s=10)

    def describe() -> None:
        with ControlClient.connected(endpoint, caller) as client:
            client.describe(10)

    def cluster() -> None:
        with closing(StoreClient(endpoint, caller)) as client:
            client.cluster(10)

    calls: list[Any] = [
        cluster,
        lambda: fetch_manifest(connection),
        lambda: check_peer(endpoint, caller, digest=digest, timeout_s=10),
    ]
    told = [text for call in calls if (text := _refusal(call))]
    connection.close()
    return told


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (SamplingError, ValueError) as error:
        return str(error)
    return ""


def test_a_graph_that_is_not_granted_is_refused_on_both_ports(tmp_path: Path) -> None:
    lines = (f"ads {OTHER} graph=ads", f"us {THIRD} digest={DIGEST[:12]}")
    with serving(tmp_path, *lines) as server:
        server.wait_ready(30)
        assert refusals(server.endpoint, SECRET) == refusals(server.endpoint, THIRD) == []
        told = refusals(server.endpoint, OTHER)
        assert len(told) == 3
        for each in told:
            assert each.endswith("token ads has no right to read this graph")
            assert "\n" not in each
        renewed = Credentials.from_files(token=tmp_path / "tokens")
        granted = (Token(name="ads", secret=OTHER), *renewed.other_tokens[1:])
        server.renew(Credentials(token=SECRET, token_name="servers", other_tokens=granted))
        assert refusals(server.endpoint, OTHER) == []
        with pytest.raises(ValueError, match="token servers, the first one"):
            server.renew(Credentials(token=SECRET, token_name="servers", token_grant=Grant(graph=("ads",))))
        assert refusals(server.endpoint, OTHER) == refusals(server.endpoint, SECRET) == []


def test_a_graph_has_the_name_of_its_folder_behind_links_wherever_it_lies(tmp_path: Path) -> None:
    """The name follows the folder, the digest the bytes: a copy in another folder is another ``graph``."""
    folder = tmp_path / "papers-2026-11"
    build_graph(small_tables(), folder, num_partitions=1)
    link, copy = tmp_path / "papers", tmp_path / "a copy"
    link.symlink_to(folder)
    shutil.copytree(folder, copy)
    digest = Graph.open(folder).manifest.digest
    grants = {
        "folder": f"graph={folder.name}",
        "link": f"graph={link.name}",
        "part": "graph=papers-2026",
        "digest": f"digest={digest[:12]}",
        "either": f"graph=elsewhere digest={digest}",
    }
    path = tmp_path / "tokens"
    secrets = {name: f"{name}-0123456789abcdef" for name in grants}
    lines = [f"{name} {secrets[name]} {grant}" for name, grant in grants.items()]
    path.write_text("\n".join((f"servers {SECRET}", *lines)))
    path.chmod(0o600)
    by_folder = {
        folder: {"folder", "digest", "either"},
        link: {"folder", "digest", "either"},
        copy: {"digest", "either"},
    }
    for served, readers in by_folder.items():
        options = ServeOptions(graph_dir=str(served), listen="127.0.0.1:0", workers=1, token_file=str(path))
        with build_storage_server(options) as server:
            server.wait_ready(30)
            endpoint = server.endpoint
            refused = {name for name in grants if refusals(endpoint, secrets[name], digest=digest)}
        assert refused == set(grants) - readers, served.name


# --- quotas

TEAM = [Identity(address=f"10.0.0.{number}", token="team") for number in range(3)]
OTHERS = Identity(address="10.0.0.9", token="others")
PRODUCER: dict[str, Any] = {"key": "train", "plan": PLAN.to_json(), "graph": DIGEST}


def granted(grant: Grant) -> Any:
    return lambda owner: grant if owner.token == "team" else EVERYTHING


def test_a_token_has_so_many_jobs_from_wherever_they_come() -> None:
    with service_of(grant_of=granted(Grant(jobs=2))) as service:
        for number, owner in enumerate(TEAM[:2]):
            service.create_producer(bytes([number] * 32), caller=owner, **PRODUCER)
        with pytest.raises(Refusal, match="quota of token team is 2 jobs on this server") as refused:
            service.create_producer(b"x" * 32, caller=TEAM[2], **PRODUCER)
        assert refused.value.kind is RefusalKind.BUSY
        assert not service.create_producer(bytes([0] * 32), caller=TEAM[0], **PRODUCER)
        for number in range(5):
            service.create_producer(bytes([9, number] * 16), caller=OTHERS, **PRODUCER)
        service.destroy_producer(bytes([0] * 32), "train")
        service.create_producer(b"x" * 32, caller=TEAM[2], **PRODUCER)


def test_a_token_has_so_many_channels() -> None:
    with service_of(grant_of=granted(Grant(channels=2))) as service:
        trainers = [Trainer(service, job=job, caller=TEAM[0]) for job in (JOB, OTHER_JOB)]
        with pytest.raises(Refusal, match="quota of token team is 2 channels on this server"):
            Trainer(service, job=b"x" * 32, caller=TEAM[1])
        Trainer(service, job=b"y" * 32, caller=OTHERS)
        service.close_channel(JOB, trainers[0].channel.id)
        Trainer(service, job=b"x" * 32, caller=TEAM[1])


def test_frames_of_a_token_wait_until_some_were_fetched() -> None:
    """The server has memory for all; a frame has 60 kB."""
    most = 1 << 20
    with service_of(frame_bytes=64 << 20, grant_of=granted(Grant(frames=most))) as service:
        team = Trainer(service, caller=TEAM[0], credit=40)
        for batch in range(30):
            team.ask(batch % 10, epoch=batch // 10)
        first = [team.answers.next() for _ in range(10)]
        others = Trainer(service, job=OTHER_JOB, caller=OTHERS, credit=40)
        for batch in range(30):
            others.ask(batch % 10, epoch=batch // 10)
        for _ in range(30):
            others.answers.next()
        held = service.frames.held()
        assert held[TEAM[0], JOB] <= most
        assert held[OTHERS, OTHER_JOB] > most
        for _, outcome in first:
            assert team.fetch(outcome) is not None
        for _ in range(20):
            assert team.fetch(team.answers.next()[1]) is not None
