"""Identities of callers."""

from __future__ import annotations

import pytest

from gigl_server.admission import LOCAL, Identity


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::9%5D:4711", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:10.0.0.7]:1", "10.0.0.7"),
        ("ipv6:[fe80::1%25eth0]:1", "fe80::/64"),
        ("unix:\nsocket", "unix:\\nsocket"),
    ],
)
def test_the_port_of_a_caller_does_not_count(peer: str, address: str) -> None:
    assert Identity.of(peer=peer).address == address


def test_a_certificate_counts_wherever_it_comes_from() -> None:
    here = Identity.of(peer="ipv4:10.0.0.7:1", token="a", certificate="ab" * 32)
    there = Identity.of(peer="ipv4:10.0.0.8:2", token="a", certificate="ab" * 32)
    assert here == there
    assert str(here) == "certificate abababababab, token a"


def test_tokens_and_addresses_tell_callers_apart() -> None:
    identities = {
        Identity.of(peer=f"ipv4:{host}:1", token=token) for host in ("10.0.0.7", "10.0.0.8") for token in "ab"
    }
    assert len(identities) == 4
    assert LOCAL not in identities
