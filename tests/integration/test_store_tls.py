"""A cluster that asks everyone for certificates: its servers each other, and trainers both ports."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.certificates import Authority
from tests.support.clusters import addresses_of, check_same, embedded, servers_of
from tests.support.peers import TOKEN
from tests.support.pyg_graphs import homogeneous

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {"batch_size": 32, "seed": 11, "timeout": 30.0, "device": "cpu"}
AUTHORITY, STRANGER = Authority(), Authority()
SOON_S = 60.0


def caller(authority: Authority = AUTHORITY, **options: Any) -> Caller:
    """Return a trainer that trusts the cluster's authority and shows what ``authority`` signed."""
    certificate, key = authority.sign(**options)
    return Caller(token=TOKEN, authority=AUTHORITY.pem.decode(), certificate=certificate, key=key)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2)
    return path


@pytest.fixture(scope="module")
def addresses(graph: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("secrets")
    certificate, key = AUTHORITY.sign()
    contents = {"token": TOKEN.encode(), "cert": certificate, "key": key, "ca": AUTHORITY.pem}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    files = {
        "token_file": "token",
        "tls_cert": "cert",
        "tls_key": "key",
        "tls_ca": "ca",
        "tls_client_ca": "ca",
    }
    options: dict[str, Any] = {option: str(folder / name) for option, name in files.items()}
    with servers_of(graph, 2, **options) as servers:
        yield addresses_of(servers)


@pytest.mark.parametrize(
    ("transport", "rows"), [("network", "direct"), ("network", "through"), ("ring", "direct")]
)
def test_batches_come_over_tls(graph: Path, addresses: list[str], transport: Any, rows: Any) -> None:
    with (
        RemoteDistDataset.connect(
            addresses[1], credentials=caller(), transport=transport, rows=rows, timeout=30.0
        ) as dataset,
        DistNeighborLoader(dataset, [4, 3], "train", **OPTIONS) as loader,
    ):
        found = list(loader)
    check_same(found, embedded(graph, [4, 3], "train", **OPTIONS))


@pytest.mark.parametrize(
    ("who", "told"),
    [
        (Caller(token=TOKEN), "it uses TLS, and is asked without: name the authority"),
        (
            Caller(token=TOKEN, authority=AUTHORITY.pem.decode()),
            "it asks callers for a certificate: give one",
        ),
        (Caller(token=TOKEN, authority=STRANGER.pem.decode()), "its certificate is not trusted here"),
        (caller(STRANGER), "it does not accept our certificate"),
        (caller(days=(-3.0, -2.0)), "our certificate expired at 2.* UTC, and here it is 2.* UTC: renew it"),
    ],
    ids=["plain", "without a certificate", "another authority", "signed by a stranger", "expired"],
)
def test_who_is_not_let_in_is_told_why_at_once(addresses: list[str], who: Caller, told: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=rf"at {addresses[0]}: {told}") as raised:
        RemoteDistDataset.connect(addresses[0], credentials=who, timeout=60.0)
    assert time.monotonic() - began < SOON_S
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the tests were copied without the pages")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_certificates_of_the_recipe_open_a_server(graph: Path, tmp_path: Path) -> None:
    [commands] = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "recipes.md").read_text(), re.M | re.S)
    subprocess.run(["bash", "-euc", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    files = {"token_file": "token", "tls_cert": "store.pem", "tls_key": "store.key", "tls_ca": "ca.pem"}
    options: dict[str, Any] = {option: str(tmp_path / name) for option, name in files.items()}
    trusting = Caller.from_files(token=tmp_path / "token", ca=tmp_path / "ca.pem")
    with servers_of(graph, 1, **options) as servers:
        for host in ("127.0.0.1", "localhost"):
            port = addresses_of(servers)[0].rpartition(":")[2]
            with RemoteDistDataset.connect(f"{host}:{port}", credentials=trusting, timeout=20) as dataset:
                assert dataset.num_servers == 1
