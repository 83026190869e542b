"""Proof of the cluster key: good for one claim, one asker and once."""

from __future__ import annotations

from typing import Any

import pytest

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.server_proof import (
    PROOF,
    Challenges,
    announcement_proof,
    header_value,
    new_nonce,
    shows,
    view_proof,
)
from tests.support.certificates import Authority

KEY, OTHER = "k" * 32, "o" * 32
TOKEN = "0123456789abcdef0123456789abcdef"


def view(**changes: Any) -> Any:
    server = messages.Server(host="store0", control_port=7070, data_port=7071, partitions=[0, 1])
    description = messages.Description(version="1", wire_version=1, graph="a" * 64, partitions=[0, 1])
    reply: Any = messages.ClusterView(servers=[server], ready=True)
    reply.self.CopyFrom(description)
    for name, value in changes.items():
        target = {"host": reply.servers[0], "data_port": reply.servers[0]}.get(name, reply.self)
        setattr(target, name, value)
    return reply


def test_a_proof_covers_all_that_is_claimed() -> None:
    nonce = new_nonce()
    proof = view_proof(KEY, nonce, view())
    assert proof == view_proof(KEY, nonce, view())
    different = [
        view_proof(OTHER, nonce, view()),
        view_proof(KEY, new_nonce(), view()),
        *(
            view_proof(KEY, nonce, view(**{name: value}))
            for name, value in {"graph": "b" * 64, "wire_version": 2, "host": "x", "data_port": 1}.items()
        ),
    ]
    moved = view()
    del moved.self.partitions[:]
    assert proof not in (*different, view_proof(KEY, nonce, moved))
    assert len(set(different)) == len(different)


@pytest.mark.parametrize("nonce", ["", "a" * 63, "A" * 64, "é" * 64, "a" * 64 + "\n"])
def test_nothing_is_proven_over_a_nonce_that_is_none(nonce: str) -> None:
    assert view_proof(KEY, nonce, view()) == ""
    assert not shows([(PROOF, "")], "")


def test_a_proof_is_shown_once() -> None:
    proof = view_proof(KEY, new_nonce(), view())
    assert shows([("x", "y"), (PROOF, proof)], proof)
    assert shows([(PROOF, proof.encode())], proof)
    for wrong in ([], None, [(PROOF, proof), (PROOF, proof)], [(PROOF, proof[:-1])], [(PROOF, "é")]):
        assert not shows(wrong, proof)


def test_a_challenge_is_good_once_and_for_a_while() -> None:
    now = [1000.0]
    challenges = Challenges(lambda: now[0])
    first, second = challenges.new(), challenges.new()
    assert challenges.use(first)
    assert not challenges.use(first)
    for wrong in ("", ".", "1.2.3", first[:-1], second + "0", "é" * 9, Challenges(lambda: now[0]).new()):
        assert not challenges.use(wrong)
    now[0] += 29
    assert challenges.use(second)
    late = challenges.new()
    now[0] += 31
    assert not challenges.use(late)
    assert not challenges.use(first)
    assert challenges.use(challenges.new())
    assert len(challenges._used) == 1


def test_an_announcement_is_no_view_and_of_one_address() -> None:
    challenge = Challenges().new()
    proof = announcement_proof(KEY, challenge, "store0:7070")
    assert proof != announcement_proof(KEY, challenge, "store1:7070")
    assert proof != announcement_proof(KEY, Challenges().new(), "store0:7070")
    assert proof != announcement_proof(OTHER, challenge, "store0:7070")
    assert header_value([(PROOF, proof)], PROOF) == proof


def test_what_is_no_cluster_key_is_refused() -> None:
    for bad in ("short", "k" * 31, "k" * 31 + " ", "é" * 32):
        with pytest.raises(ValueError, match="a cluster key has at least 32"):
            Credentials(token=TOKEN, cluster_key=bad)
    with pytest.raises(ValueError, match="the cluster key is a token, too"):
        Credentials(token=TOKEN, cluster_key=TOKEN)
    assert KEY not in repr(Credentials(token=TOKEN, cluster_key=KEY))
    assert Credentials(token=TOKEN, cluster_key=KEY).caller().token == TOKEN


def test_what_tells_servers_from_trainers() -> None:
    servers, trainers = Authority(), Authority()
    certificate, key = servers.sign()
    pair = {"certificate": certificate, "key": key}
    chain = {"certificate": certificate + servers.pem, "key": key}
    both = servers.pem + trainers.pem
    for proven, given in (
        (False, {}),
        (True, {"cluster_key": KEY}),
        (True, pair),
        (True, {**pair, "authority": servers.pem}),
        (False, chain),
        (True, {**chain, "authority": servers.pem}),
        (False, {**pair, "authority": servers.pem, "client_authority": servers.pem}),
        (True, {**pair, "authority": servers.pem, "client_authority": both}),
        (False, {**pair, "authority": both, "client_authority": servers.pem}),
        (True, {**pair, "authority": servers.pem, "client_authority": servers.pem, "cluster_key": KEY}),
    ):
        assert Credentials(token=TOKEN, **given).proves_servers() == proven, given
