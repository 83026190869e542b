from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from torch import distributed
from torch._C._distributed_c10d import HashStore

from gigl_loader.group import RankGroup
from gigl_loader.topology import Topology, own_address
from tests.support.thread_ranks import run_ranks

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


TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.7",
}


def _group(rank: int, world_size: int) -> RankGroup:
    return RankGroup(HashStore(), rank, world_size)


def test_torchrun_tells_the_place_in_a_group() -> None:
    assert Topology.detect(TORCHRUN, group=_group(2, 4)) == Topology(
        rank=2,
        world_size=4,
        local_rank=0,
        local_world_size=2,
        host_index=1,
        num_hosts=2,
        master_address="10.0.0.7",
    )


@pytest.mark.parametrize("variables", [TORCHRUN, {"RANK": "1", "WORLD_SIZE": "2"}])
def test_a_rank_without_a_group_is_told_to_make_one(variables: dict[str, str]) -> None:
    rule = r"one of WORLD_SIZE=\d ranks but has no process group: call .*init_process_group.* sharding='none'"
    with pytest.raises(ValueError, match=rule):
        Topology.detect(variables)


def test_a_world_of_one_needs_no_group() -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.7"}
    assert Topology.detect(variables) == Topology(master_address="10.0.0.7")


def test_torchrun_with_another_number_of_ranks_on_a_host_is_refused_with_the_counts() -> None:
    store = HashStore()
    second = TORCHRUN | {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"}
    first = TORCHRUN | {"RANK": "0", "WORLD_SIZE": "3", "GROUP_RANK": "0"}
    with pytest.raises(ValueError, match=r"host 1 has 1 \(3 on 2 hosts in all\)"):
        Topology.detect(second, group=RankGroup(store, 2, 3))
    with pytest.raises(ValueError, match=r"host 0 has 2, host 1 has 1 \(3 on 2 hosts.*--nproc-per-node"):
        Topology.detect(first, group=RankGroup(store, 0, 3))


def test_variables_of_another_group_do_not_count() -> None:
    places = run_ranks(2, lambda group: Topology.detect(TORCHRUN, group=group))
    assert [place.world_size for place in places if isinstance(place, Topology)] == [2, 2]


def test_without_torchrun_hosts_are_told_apart_by_boot_id() -> None:
    places = run_ranks(4, lambda group: Topology.detect({}, group=group), hosts=["b", "a", "a", "b"])
    assert [(each.local_rank, each.host_index) for each in places if isinstance(each, Topology)] == [
        (0, 0),
        (0, 1),
        (1, 1),
        (1, 0),
    ]


def test_uneven_hosts_without_torchrun_are_refused_with_the_counts() -> None:
    errors = run_ranks(3, lambda group: Topology.detect({}, group=group), hosts=["a", "a", "b"])
    assert all("host 0 has 2, host 1 has 1" in str(error) for error in errors)


def test_addresses_tell_hosts_apart_that_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {0: "10.0.0.1", 1: "10.0.0.2"}

    def program(group: RankGroup) -> Topology:
        return Topology.detect({"MASTER_ADDR": str(group.rank)}, group=group)

    monkeypatch.setattr("gigl_loader.topology.own_address", lambda towards: addresses[int(towards)])
    places = run_ranks(2, program)
    assert [each.num_hosts for each in places if isinstance(each, Topology)] == [2, 2]


def test_ranks_that_do_not_say_where_they_are_are_named() -> None:
    with pytest.raises(TimeoutError, match=r"^ranks 0, 2 did not tell which host .*all ranks must"):
        Topology.detect({}, group=_group(1, 3), timeout=0.02)


def test_the_own_address_is_one_of_this_host() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("no.such.host.invalid") == "127.0.0.1"


def test_the_boot_id_can_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    group = _group(0, 1)
    Topology.detect({"GIGL_BOOT_ID": "mine"}, group=group)
    assert json.loads(group.published("host")[0])[0] == "mine"


def test_a_place_can_be_had_without_asking() -> None:
    def program(group: RankGroup) -> list[Topology]:
        return [Topology.without_asking({}), Topology.without_asking(TORCHRUN)] if group.rank == 2 else []

    found = run_ranks(4, program)[2]
    assert found == [Topology(rank=2, world_size=4), Topology.detect(TORCHRUN, group=_group(2, 4))]
    assert Topology.without_asking(TORCHRUN) == Topology()


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
