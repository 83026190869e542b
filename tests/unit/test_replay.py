"""``gigl-loader replay``: batches of a ledger are made again, and what differs is named."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import CustomSamplerOptions, DistDataset, DistNeighborLoader, LaborSamplerOptions
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE
from gigl_loader.loaders.ledger import digest_of_json
from gigl_loader.loaders.ledger_file import BEGIN, sealed
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph, tables_from_pyg
from gigl_loader.topology import Topology
from tests.support.clusters import addresses_of, servers_of
from tests.support.command_line import run_here
from tests.support.pyg_graphs import heterogeneous, homogeneous

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS: dict[str, Any] = {"batch_size": 32, "shuffle": True, "seed": 5, "device": "cpu", "num_workers": 0}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("replay") / "graph", homogeneous())


@pytest.fixture(scope="module")
def ledger(graph: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs, the second without its last batch."""
    path = tmp_path_factory.mktemp("replay") / "run.jsonl"
    with DistNeighborLoader(DistDataset.open(graph), [4, 3], "train", **OPTIONS) as loader:
        loader.ledger(path)
        list(loader)
        list(islice(loader, len(loader) - 1))
    return path


def built(path: Path, data: Any, **options: Any) -> Path:
    build_graph(tables_from_pyg(data), path, **{"num_partitions": 2, **options})
    return path


def rewritten(ledger: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write a ledger with other lines that are sealed as they should be."""
    chain, texts = BEGIN, []
    for line in ledger.read_text().splitlines():
        record = json.loads(line)
        del record["chain"]
        change(record)
        text, chain = sealed(record, chain)
        texts.append(text)
    path.write_bytes(b"".join(texts))
    return path


def replay(*arguments: object) -> tuple[int, str]:
    """Return exit code and what was told, on stdout or stderr."""
    found = run_here("replay", *map(str, arguments))
    return found.returncode, found.stdout + found.stderr


def test_all_batches_are_what_they_were(graph: Path, ledger: Path) -> None:
    code, text = replay(ledger, "--graph", graph)
    assert code == 0, text
    count = len(ledger.read_text().splitlines()) - 2
    assert f"{count} of {count} batches are what they were, byte for byte" in text
    assert "other partitions" not in text


def test_one_batch_on_a_graph_that_is_partitioned_otherwise(ledger: Path, tmp_path: Path) -> None:
    other = built(tmp_path / "graph", homogeneous(), num_partitions=3, assigner="hash")
    code, text = replay(ledger, "--batch", 2, "--epoch", 1, "--graph", other)
    assert code == 0, text
    assert "1 of 1 batches are what they were" in text
    assert "the graph here has digest" in text


def test_node_ids_may_be_negative(tmp_path: Path) -> None:
    ids, random = np.arange(-40, 60), np.random.default_rng(0)
    edges = {"src": random.choice(ids, 600), "dst": random.choice(ids, 600)}
    given = GraphTables(
        {HOMOGENEOUS_EDGE: ArrayTable("edges", edges)}, {"node": NodeTable(ArrayTable("nodes", {"id": ids}))}
    )
    for parts in (1, 3):
        build_graph(given, tmp_path / f"graph{parts}", num_partitions=parts)
    ledger = tmp_path / "run.jsonl"
    seeds = torch.from_numpy(ids[:50].copy())
    with DistNeighborLoader(DistDataset.open(tmp_path / "graph1"), [4], seeds, batch_size=20) as loader:
        loader.ledger(ledger)
        list(loader)
    code, text = replay(ledger, "--graph", tmp_path / "graph3")
    assert code == 0, text


def test_over_storage_servers_as_json(graph: Path, ledger: Path) -> None:
    with servers_of(graph, 2) as servers:
        stores = [word for address in addresses_of(servers) for word in ("--store", address)]
        found = run_here("replay", str(ledger), "-b", "0", "-b", "1", "--epoch", "0", *stores, "--json")
        listed = ",".join(addresses_of(servers))  # As GIGL_STORE has them.
        again = run_here("replay", str(ledger), "-b", "0", "--epoch", "0", "--store", listed)
    assert again.returncode == 0, again.stderr
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    [told] = document["ledgers"]
    assert (told["batches"], told["epochs"], told["graph"]) == (11, [0, 1], document["graph"])
    assert told["head"] == json.loads(ledger.read_text().splitlines()[-1])["chain"]
    assert document["same"]
    assert [(each["batch"], each["line"], each["differs"]) for each in document["batches"]] == [
        (0, 3, []),
        (1, 4, []),
    ]


def test_without_a_graph_the_lines_alone_are_checked(ledger: Path, tmp_path: Path) -> None:
    code, text = replay(ledger)
    assert code == 0
    assert f"{ledger}: 13 lines, 11 batches of 2 epochs, every line is sealed" in text
    head = json.loads(ledger.read_text().splitlines()[4])["chain"]
    assert replay(ledger, "--head", head)[0] == 0
    changed = tmp_path / "changed.jsonl"
    changed.write_text(ledger.read_text().replace('"batch": 1,', '"batch": 9,', 1))
    code, text = replay(changed)
    assert (code, "changed.jsonl, line 4: it was changed" in text) == (2, True)
    code, text = replay(changed, "--head", "f" * 64)
    assert code == 2
    code, text = replay(ledger, "--head", "f" * 64)
    assert (code, "no line has the head ffff" in text) == (2, True)


def test_other_values_are_named_by_column_and_line(ledger: Path, tmp_path: Path) -> None:
    data = homogeneous()
    data.x[:, 3] += 1e-6
    code, text = replay(ledger, "-b", 2, "--epoch", 0, "--graph", built(tmp_path / "graph", data))
    assert code == 1
    assert "run.jsonl, line 5: batch 2 of epoch 0, of trainer, differs: column x of node\n" in text
    assert "0 of 1 batches are what they were" in text
    assert "the graph is whole: it has other contents" in text


def test_another_edge_is_named_by_the_arrays_of_its_type(tmp_path: Path) -> None:
    data, options = heterogeneous(), {**OPTIONS, "batch_size": 200}
    path = tmp_path / "run.jsonl"
    with DistNeighborLoader(
        DistDataset.open(built(tmp_path / "one", data)), [-1], ("item", None), **options
    ) as loader:
        loader.ledger(path)
        next(loader)
    index = data["user", "buys", "item"].edge_index
    index[0, 5] = (index[0, 5] + 1) % 120
    found = run_here("replay", str(path), "--graph", str(built(tmp_path / "other", data)), "--json")
    assert found.returncode == 1
    [result] = json.loads(found.stdout)["batches"]
    assert "edge/user+buys+item/rows" in result["differs"]
    assert not any("tag" in name or name == "seeds" for name in result["differs"])


@pytest.mark.parametrize("folder", ["nodes", "edges", "topology"])
def test_a_flipped_byte_of_the_graph_is_found_and_named(folder: str, ledger: Path, tmp_path: Path) -> None:
    path = built(tmp_path / "graph", homogeneous())
    [file] = (path / "part-00001" / folder).iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    file.write_bytes(data)
    code, text = replay(ledger, "--graph", path)
    assert code == 2 or (code == 1 and "the graph is damaged: " in text)
    assert f"part-00001/{folder}/node" in text


def test_a_ledger_that_contradicts_itself(graph: Path, ledger: Path, tmp_path: Path) -> None:
    """Whoever rewrites all lines has sound seals: what they say must still fit together, and the graph."""

    def with_entries(record: dict[str, Any]) -> None:
        if record["kind"] == "batch" and record["batch"] == 1:
            record["entries"] = [0, 32]

    code, text = replay(
        rewritten(ledger, tmp_path / "a", with_entries), "-b", 1, "--epoch", 0, "--graph", graph
    )
    assert code == 1
    assert "differs: the request" in text

    def with_frame(record: dict[str, Any]) -> None:
        if record["kind"] == "batch" and record["batch"] == 1:
            record["frame"] = "0" * 32

    code, text = replay(rewritten(ledger, tmp_path / "b", with_frame), "--graph", graph)
    assert code == 2
    assert "line 4: its arrays do not have the digest of the frame" in text


BROKEN: list[tuple[str, str, Any]] = [
    ("batch", "entries", [0, 10**9]),
    ("batch", "entries", [5, 3]),
    ("batch", "entries", [0]),
    ("batch", "entries", None),
    ("batch", "entries", "0 32"),
    ("batch", "places", [10**9]),
    ("batch", "places", [-1]),
    ("batch", "arrays", []),
    ("batch", "epoch", -1),
    ("batch", "batch", 10**30),
    ("run", "num_entries", 10**12),
    ("run", "num_entries", -1),
    ("run", "num_entries", "many"),
    ("run", "format", 2),
    ("run", "plan", {}),
    ("run", "plan", {"kind": "none"}),
    ("run", "settings", {}),
    ("input", "values", "!"),
    ("input", "values", "eAE="),
    ("input", "column", "other"),
    ("input", "first", 1),
    ("input", "kind", "another"),
]


@pytest.mark.parametrize("change", BROKEN, ids=str)
def test_lines_that_break_a_rule_are_one_line_errors(
    change: tuple[str, str, Any], graph: Path, ledger: Path, tmp_path: Path
) -> None:
    kind, field, value = change

    def broken(record: dict[str, Any]) -> None:
        if record["kind"] == kind:
            record[field] = value

    code, text = replay(rewritten(ledger, tmp_path / "broken.jsonl", broken), "--graph", graph)
    assert code == 2
    assert "broken.jsonl" in text
    assert text.count("\n") == 1
    assert "Traceback" not in text
    assert "--debug" not in text


def test_mistakes_are_one_line(graph: Path, ledger: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for arguments, words in (
        ((ledger, "-b", 1), "add --graph DIRECTORY or --store"),
        ((ledger, "-b", 1, "--graph", graph), "batch 1 is in epochs 0, 1: choose with --epoch"),
        ((ledger, "-b", 77, "--graph", graph), "no batch 77 in"),
        ((ledger, "-b", 5, "--epoch", 1, "--graph", graph), "no batch 5 of epoch 1 in"),
        ((ledger, "--graph", graph, "--store", "h:1"), "give one of them"),
        ((tmp_path / "missing", "--graph", graph), "no such file or directory"),
        ((ledger, "--graph", tmp_path / "missing"), "missing"),
        ((graph / "graph.json",), "is no ledger"),
        ((pipe,), "is no file"),
        ((tmp_path,), "is no file"),
        ((ledger, ledger, "--head", "a"), "--head is of one ledger"),
    ):
        code, text = replay(*arguments)
        assert code == 2, (arguments, text)
        assert words in text
        assert text.count("\n") == 1, text


def test_a_graph_of_other_types(ledger: Path, tmp_path: Path) -> None:
    code, text = replay(ledger, "--graph", built(tmp_path / "graph", heterogeneous()))
    assert code == 2
    assert f"the plan of {ledger} does not fit this graph: " in text


def test_a_node_that_the_graph_lacks(ledger: Path, tmp_path: Path) -> None:
    code, text = replay(ledger, "--graph", built(tmp_path / "graph", homogeneous(50)))
    assert code == 2
    assert text.count("\n") == 1


def test_batches_of_another_draw_specification(graph: Path, ledger: Path, tmp_path: Path) -> None:
    def older(record: dict[str, Any]) -> None:
        if record["kind"] == "run":
            record["settings"]["draws"] = 1
            record["run"] = digest_of_json(record["settings"])

    code, text = replay(rewritten(ledger, tmp_path / "old.jsonl", older), "--graph", graph)
    assert code == 2
    assert "is of draw specification 1, and this version has 2: replay it with gigl-loader" in text


def test_the_ledgers_of_ranks_are_given_together(graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for rank in range(2):
        with DistNeighborLoader(
            DistDataset.open(graph), [4, 3], "train", sharding="batches", **OPTIONS
        ) as loader:
            loader.reshard(Topology(rank=rank, world_size=2))
            loader.ledger(path)
            list(loader)
    code, text = replay(path, "-b", 3, "--graph", graph)
    assert code == 2
    assert "no batch 3 in" in text
    assert "there were 2 ranks: name the ledgers of all" in text
    code, text = replay(path, tmp_path / "run.rank1.jsonl", "-b", 3, "-b", 2, "--graph", graph)
    assert code == 0, text
    assert "2 of 2 batches are what they were" in text
    assert replay(path, tmp_path / "run.rank1.jsonl", "--graph", graph)[0] == 0  # The uneven last step.


@pytest.mark.parametrize("assigner", ["range", "hash"])
def test_inspect_tells_the_digest_of_the_seeds_that_states_have(assigner: str, tmp_path: Path) -> None:
    path = built(tmp_path / "graph", heterogeneous(), assigner=assigner)
    with DistNeighborLoader(DistDataset.open(path), [2], "train", **OPTIONS) as loader:
        state = loader.state_dict()
    document = json.loads(run_here("inspect", str(path), "--json").stdout)
    assert document["digest"] == state["digests"]["graph"]
    [split] = [each for each in document["splits"] if each["split"] == "train"]
    assert (split["type"], split["nodes"]) == ("user", state["made_with"]["number of seeds"])
    assert split["digest of seeds"] == state["made_with"]["digest of seeds"]


def test_draws_that_depend_on_the_number_of_the_batch(graph: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "sampler_options": LaborSamplerOptions(batch_dependency=3)}
    with DistNeighborLoader(DistDataset.open(graph), [4, 3], "train", **options) as loader:
        loader.ledger(tmp_path / "run.jsonl")
        list(loader)
    code, text = replay(tmp_path / "run.jsonl", "--graph", graph)
    assert code == 0, text


def test_seeds_drawn_by_weights_of_a_mask(graph: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "shuffle": False, "seed_weights": torch.arange(300).float()}
    mask = torch.arange(300) % 3 == 0
    with DistNeighborLoader(DistDataset.open(graph), [4, 3], mask, **options) as loader:
        loader.ledger(tmp_path / "run.jsonl")
        list(loader)
    code, text = replay(tmp_path / "run.jsonl", "--graph", graph)
    assert code == 0, text


def test_a_sampler_of_a_users_own_is_imported_only_where_it_is_allowed(graph: Path, tmp_path: Path) -> None:
    halved = "tests.support.user_samplers:Halved"
    sampler = CustomSamplerOptions(halved, fanout=6, keep=0.7)
    with DistNeighborLoader(
        DistDataset.open(graph), None, "train", sampler_options=sampler, **OPTIONS
    ) as loader:
        loader.ledger(tmp_path / "run.jsonl")
        next(loader)
    code, text = replay(tmp_path / "run.jsonl", "--graph", graph)
    assert code == 2
    assert "--allow-sampler" in text
    assert replay(tmp_path / "run.jsonl", "--graph", graph, "--allow-sampler", halved)[0] == 0
