from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from torch import distributed

from gigl_loader.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_process_without_a_group_stands_alone() -> None:
    assert Topology.detect() == Topology(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        host_index=0,
        num_hosts=1,
        master_address="localhost",
    )


@pytest.mark.usefixtures("group_of_one")
def test_a_group_of_one_is_served_and_tells_the_master() -> None:
    assert Topology.detect({"MASTER_ADDR": "10.0.0.7"}) == Topology(master_address="10.0.0.7")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"rank": 1}, r"rank 1 does not lie in \[0, 1\)"),
        ({"rank": -1}, "rank -1"),
        ({"local_rank": 2, "local_world_size": 2}, r"local_rank 2 does not lie in \[0, 2\)"),
        ({"host_index": 1}, "host_index 1"),
        ({"world_size": 0}, r"\[0, 0\)"),
    ],
)
def test_places_that_cannot_be_are_refused(fields: dict[str, int], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Topology(**fields)  # type: ignore[arg-type]


def test_an_empty_master_address_is_refused() -> None:
    with pytest.raises(ValueError, match="master_address"):
        Topology(master_address="")


def test_a_topology_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Topology().rank = 3  # type: ignore[misc]


def test_detecting_does_not_import_torch() -> None:
    code = (
        "import sys; from gigl_loader.topology import Topology; Topology.detect(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
