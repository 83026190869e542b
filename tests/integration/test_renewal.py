"""Tokens and certificates that are changed under load, by their files alone: nobody is restarted."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.config import ServeOptions
from tests.support.certificates import Authority
from tests.support.clusters import addresses_of, servers_of
from tests.support.leftovers import wait_until
from tests.support.other_builds import BuildServers
from tests.support.secret_files import mounted, write
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leftovers")

DEADLINE = 60.0
OLD, NEW = "old-0123456789abcdef", "new-0123456789abcdef"
AUTHORITY = Authority()


class Secrets:
    """Secrets of a server or a trainer, in a folder that is swapped as Kubernetes does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._swaps = 0

    def swap(self, *tokens: str) -> None:
        """Mount other tokens, another certificate and its key at once."""
        self._swaps += 1
        certificate, key = AUTHORITY.sign()
        text = "".join(f"{token.partition('-')[0]} {token}\n" for token in tokens)
        mounted(
            self.folder, f"v{self._swaps}", token=text, cert=certificate, key=key, ca=AUTHORITY.pem.decode()
        )

    @property
    def options(self) -> list[str]:
        names = {"--token-file": "token", "--tls-cert": "cert", "--tls-key": "key", "--tls-ca": "ca"}
        return [word for option, name in names.items() for word in (option, str(self.folder / name))]

    def caller(self) -> Caller:
        return Caller.from_files(token=self.folder / "token", ca=self.folder / "ca")


def loader_of(dataset: Any) -> DistNeighborLoader:
    return DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS | {"timeout": DEADLINE, "prefetch_size": 2})


def takes(address: str, token: str) -> bool:
    """Return whether a server accepts a token."""
    endpoint = Endpoint.of_address(Address.parse(address), what="storage server")
    caller = Caller(token=token, authority=AUTHORITY.pem.decode())
    with closing(StoreClient(endpoint, caller)) as client:
        try:
            client.cluster(DEADLINE)
        except StorageUnavailable:
            raise
        except SamplingError:
            return False
        return True


@pytest.mark.slow
def test_all_secrets_are_changed_without_a_restart(graph: Path, expected: list[int], tmp_path: Path) -> None:
    """Add the new token, change the trainer, remove the old one. Servers see each step at another time."""
    trainer, *server_secrets = (Secrets(tmp_path / name) for name in ("trainer", "s0", "s1"))
    for each in (trainer, *server_secrets):
        each.swap(OLD)
    with BuildServers(graph, 2) as servers, ExitStack() as stack:
        for number, each in enumerate(server_secrets):
            servers.start(number, *each.options)
        caller = trainer.caller()
        dataset = stack.enter_context(
            RemoteDistDataset.connect(
                servers.addresses, credentials=caller, timeout=DEADLINE, transport="flight", rows="direct"
            )
        )
        loader = stack.enter_context(loader_of(dataset))
        batches: Iterator[Any] = iter(loader)
        seen = [digest(next(batches)) for _ in range(2)]

        def step(number: int, *tokens: str, until: bool, token: str) -> None:
            """Change the secrets of a server, and train on until it has noticed, and a little longer."""
            server_secrets[number].swap(*tokens)
            assert wait_until(lambda: takes(servers.addresses[number], token) is until, seconds=DEADLINE)
            seen.extend(digest(next(batches)) for _ in range(3))

        step(0, NEW, OLD, until=True, token=NEW)
        step(1, NEW, OLD, until=True, token=NEW)
        trainer.swap(NEW)
        step(0, NEW, until=False, token=OLD)
        write(server_secrets[0].folder / "..data" / "cert", b"half a certif")
        step(1, NEW, until=False, token=OLD)
        seen.extend(digest(batch) for batch in batches)
        assert seen == expected
        assert wait_until(lambda: "stay as they are" in servers.log(0), seconds=DEADLINE)
        assert takes(servers.addresses[0], NEW)
        batches = iter(())
        stack.close()
        for number in (0, 1):
            code, log = servers.stop(number)
            told = [line for line in log.splitlines() if "stay as they are" in line]
            assert (code, len(told)) == (0, 1 - number), log
            assert all("cert" in line for line in told)


def test_a_trainer_shows_the_certificate_that_its_files_hold_now(
    graph: Path, expected: list[int], tmp_path: Path
) -> None:
    """The authority of trainers is changed: add the new one, change the trainer, remove the old one."""
    before, after = Authority(), Authority()
    certificate, key = AUTHORITY.sign()
    files = {"tls_cert": certificate, "tls_key": key, "tls_ca": AUTHORITY.pem}
    both = b"".join((before.pem, after.pem, AUTHORITY.pem))
    for name, content in {**files, "clients": before.pem + AUTHORITY.pem}.items():
        write(tmp_path / name, content)
    options: dict[str, Any] = {name: str(tmp_path / name) for name in files}
    options["tls_client_ca"] = str(tmp_path / "clients")
    given = {"graph_dir": graph, "listen": "127.0.0.1:0", **options}
    own = [tmp_path / "certificate", tmp_path / "key"]
    for path, content in zip(own, before.sign(), strict=True):
        write(path, content)
    with (
        servers_of(graph, 1, **options) as servers,
        RemoteDistDataset.connect(
            addresses_of(servers),
            credentials=Caller.from_files(ca=tmp_path / "tls_ca", certificate=own[0], key=own[1]),
            transport="flight",
            timeout=DEADLINE,
        ) as dataset,
        loader_of(dataset) as loader,
    ):
        batches: Iterator[Any] = iter(loader)
        seen = [digest(next(batches)) for _ in range(2)]
        for clients in (both, after.pem + AUTHORITY.pem):
            write(tmp_path / "clients", clients)
            [server] = servers
            server.renew(ServeOptions(**given).load_credentials())
            seen.extend(digest(next(batches)) for _ in range(3))
            if clients is both:
                for path, content in zip(own, after.sign(), strict=True):
                    write(path, content)
        seen.extend(digest(batch) for batch in batches)
        assert seen == expected
        batches = iter(())
