"""``gigl-loader audit`` and ``gigl_loader.audit``: leaks are found and named, clean batches pass."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    AuditReport,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    PPRSamplerOptions,
    RandomWalkSamplerOptions,
    audit,
)
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, EdgeSplits
from gigl_loader.loaders.audit import audit_ledgers
from gigl_loader.loaders.audit_batches import AuditedBatch, TimeCheck, audited_plan
from gigl_loader.loaders.replay import Recording
from gigl_loader.loaders.single_batches import SingleBatches
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.partition.pyg import tables_from_pyg
from gigl_loader.topology import Topology
from tests.support.command_line import run_here

BUYS, REV_BUYS, SOLD_TO = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("item", "sold_to", "user")
_COUNT, _USERS, _ITEMS = 300, 60, 40
_RANDOM = torch.Generator().manual_seed(0)
LINKS = torch.stack([torch.randint(0, count, (_COUNT,), generator=_RANDOM) for count in (_USERS, _ITEMS)])
TIMES = torch.arange(_COUNT) // 3
OPTIONS: dict[str, Any] = {"batch_size": 50, "num_workers": 0, "seed": 1, "device": "cpu"}


def shop(reverse: Any = REV_BUYS) -> HeteroData:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = _USERS, _ITEMS
    data[BUYS].edge_index, data[BUYS].at = LINKS, TIMES
    if reverse is not None:
        data[reverse].edge_index, data[reverse].at = LINKS.flip(0), TIMES
    return data


def links(dataset: DistDataset, given: Any = (BUYS, LINKS), **options: Any) -> AuditReport:
    how = {name: options.pop(name) for name in ("checks", "batches", "epoch") if name in options}
    with DistLinkNeighborLoader(dataset, [-1, 3], given, **{**OPTIONS, **options}) as loader:
        return audit(loader, **how)


def of(report: AuditReport, check: str) -> Any:
    return [each for each in report.findings if each.check == check]


# Targets


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize(
    "options",
    [
        {"neg_sampling": "binary"},
        {"neg_sampling": "triplet", "disjoint": True},
        {"subgraph_type": "bidirectional"},
        {"subgraph_type": "induced", "shuffle": True},
    ],
)
def test_excluded_links_are_proven_to_be_no_messages(
    edge_dir: Literal["in", "out"], options: dict[str, Any]
) -> None:
    dataset = DistDataset.from_pyg(shop(), edge_dir=edge_dir, num_partitions=3, assigner="hash")
    report = links(dataset, exclude_targets=True, **options)
    assert report.ok, report
    [targets] = of(report, "targets")
    assert targets.looked_at["targets"] == _COUNT
    assert targets.looked_at["edges"] > _COUNT
    found = links(dataset, **options)
    assert not found
    [targets] = of(found, "targets")
    assert targets.violations > 100
    assert targets.result.endswith("exclude_targets=True removes them")


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("kind", ["directional", "bidirectional"])
def test_a_violation_names_the_batch_and_the_edge(edge_dir: Literal["in", "out"], kind: str) -> None:
    report = links(DistDataset.from_pyg(shop(), edge_dir=edge_dir), subgraph_type=kind, disjoint=True)
    assert {each.edge_type for each in report.violations} <= {BUYS, REV_BUYS}
    for each in report.violations:
        assert each.edge is not None
        assert each.edge_id is not None
        assert each.batch is not None
        assert each.edge_type is not None
        user, item = each.edge if each.edge_type == BUYS else each.edge[::-1]
        assert LINKS[:, each.edge_id].tolist() == [user, item]
        of_batch = LINKS[:, each.batch * 50 : each.batch * 50 + 50].t().tolist()
        assert [user, item] in of_batch
        assert each.text.startswith(f"batch {each.batch} of epoch 0: edge {each.edge_id} of type ")


def test_links_that_stay_in_the_reverse_type_are_found() -> None:
    """As a run of version 0.2.0 left them: its plan excludes nothing but the type itself."""
    dataset = DistDataset.from_pyg(shop())
    with DistLinkNeighborLoader(
        dataset, [-1], (BUYS, LINKS), exclude_targets=True, reverse_edge_types={}, **OPTIONS
    ) as loader:
        assert audit(loader).ok  # The user says that there is no reverse type.
        loader._reverse_edge_types = None
        loader._reverses_are_told = False
        report = audit(loader)
    assert not report
    assert {each.edge_type for each in report.violations} == {REV_BUYS}
    assert report.violations[0].text.endswith("is a target of the batch the other way round")


@pytest.mark.parametrize("fanouts", [[-1], [4]])
def test_an_undeclared_type_that_holds_the_targets_is_found(fanouts: list[int]) -> None:
    dataset = DistDataset.from_pyg(shop(SOLD_TO))
    for told, ok in ((None, False), ({}, True), ({BUYS: SOLD_TO}, True)):
        with DistLinkNeighborLoader(
            dataset, fanouts, (BUYS, LINKS), exclude_targets=True, reverse_edge_types=told, **OPTIONS
        ) as loader:
            report = audit(loader)
        assert report.ok == ok
    report = links(dataset, exclude_targets=True)
    [violation] = report.violations
    assert violation.edge_type == SOLD_TO
    assert "its type is no declared reverse: pass reverse_edge_types" in violation.text
    assert of(report, "targets")[0].violations > 100
    both = Data(edge_index=torch.cat([LINKS, LINKS.flip(0)], dim=1), num_nodes=_USERS)
    undirected = DistDataset.from_pyg(both)
    assert not links(undirected, LINKS, exclude_targets=True)
    assert links(
        undirected, LINKS, exclude_targets=True, reverse_edge_types={HOMOGENEOUS_EDGE: HOMOGENEOUS_EDGE}
    )


@pytest.mark.parametrize("hops", ["hops", "ppr", "walks"])
def test_labels_of_anchors_are_targets(hops: str) -> None:
    samplers: dict[str, Any] = {
        "hops": {},
        "ppr": {"sampler_options": PPRSamplerOptions(include_sampled_edges=True)},
        "walks": {"sampler_options": RandomWalkSamplerOptions(walk_length=2, metapath=[BUYS, REV_BUYS])},
    }
    dataset = DistDataset.from_pyg(shop(), edge_dir="out", labels={BUYS: (LINKS[:, :200], LINKS[:, 200:])})
    fanouts = [-1] if hops == "hops" else None
    if hops == "walks":
        samplers["walks"] = {
            "sampler_options": RandomWalkSamplerOptions(
                walk_length=2, metapath={"user": [BUYS, REV_BUYS], "item": [REV_BUYS, BUYS]}
            )
        }
    options: dict[str, Any] = {"supervision_edge_type": BUYS, **samplers[hops], **OPTIONS}
    for excluded in (True, False):
        with DistABLPLoader(dataset, fanouts, ("user", None), exclude_targets=excluded, **options) as loader:
            report = audit(loader)
        [targets] = of(report, "targets")
        assert targets.looked_at["targets"] == _COUNT
        if hops == "walks":
            assert targets.unchecked == "batches have no message edges"
        else:
            assert report.ok == excluded


def test_loaders_of_nodes_have_no_targets() -> None:
    with DistNeighborLoader(DistDataset.from_pyg(shop()), [2], ("user", None), **OPTIONS) as loader:
        report = audit(loader)
    assert report.ok
    assert of(report, "targets")[0].result == "not checked: seeds are nodes"
    assert of(report, "times")[0].result == "not checked: no time_attr"
    assert of(report, "splits")[0].result == "not checked: the graph has no splits"


# Times


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("of_nodes", [False, True])
def test_edges_that_are_later_than_their_seed_are_found(
    edge_dir: Literal["in", "out"], of_nodes: bool
) -> None:
    """Batches of ``<=`` are checked by ``<``: edges at the time of their seed are violations."""
    data = shop()
    data["user"].at, data["item"].at = torch.arange(_USERS) % 30, torch.arange(_ITEMS) % 30
    named: Any = {"user": "at", "item": "at"} if of_nodes else {BUYS: "at", REV_BUYS: "at"}
    dataset = DistDataset.from_pyg(data, time_attr=named, edge_dir=edge_dir)
    options: Any = {"time_attr": "at", "edge_label_time": TIMES}
    with (
        DistLinkNeighborLoader(dataset, [-1, -1], (BUYS, LINKS), **options, **OPTIONS) as loader,
        DistLinkNeighborLoader(
            dataset, [-1, -1], (BUYS, LINKS), temporal_comparison="<", **options, **OPTIONS
        ) as strict,
    ):
        for made in (loader, strict):
            report = audit(made, checks=["times"])
            assert report.ok, report
            assert sum(found.looked_at["edges"] for found in of(report, "times")) > 100
        plan = audited_plan(loader.plan, dataset.schema)
        batches = SingleBatches(dataset.open_source, replace(loader._source_request(), plan=plan))
        check = TimeCheck(dataset.schema, strict.plan)
        request = loader._schedule.request(0, 1)
        check.look(AuditedBatch(batches.receive(replace(request, batch=0)), request, dataset.schema))
        batches.close()
    violations = [found for each in check.findings() for found in each.examples]
    assert violations
    for each in violations:
        assert each.edge is not None
        assert each.edge_type is not None
        assert each.edge_id is not None
        time = int(each.text.partition(": edge")[2].partition("at ")[2].partition(",")[0])
        neighbor = each.edge_type[0] if edge_dir == "in" else each.edge_type[2]
        of_neighbor = each.edge[0] if edge_dir == "in" else each.edge[1]
        assert time == int(data[neighbor].at[of_neighbor] if of_nodes else TIMES[each.edge_id])
        assert each.text.endswith(f"is not earlier than its seed at {time}")


def test_types_without_times_are_named() -> None:
    dataset = DistDataset.from_pyg(shop(), time_attr={BUYS: "at"})
    with DistLinkNeighborLoader(
        dataset, [3], (BUYS, LINKS), time_attr="at", edge_label_time=TIMES, **OPTIONS
    ) as loader:
        told = [(each.subject, each.result) for each in of(audit(loader), "times")]
    assert told == [
        ("at of user,buys,item, for edges user,buys,item", "ok"),
        ("edges item,rev_buys,user", "not checked: without times"),
    ]


# Seeds


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"drop_last": True, "batch_size": 7},
        {"batch_size": 7, "even_batches": False},
    ],
)
@pytest.mark.parametrize("world_size", [1, 4])
def test_seeds_of_all_ranks_come_once(options: dict[str, Any], world_size: int) -> None:
    mask = torch.arange(_USERS) % 3 > 0
    with DistNeighborLoader(
        DistDataset.from_pyg(shop()), [1], ("user", mask), **{**OPTIONS, **options}
    ) as loader:
        loader.reshard(Topology(rank=0, world_size=world_size))
        report = audit(loader, epoch=2)
        some = audit(loader, batches=2)
    assert report.ok
    [seeds] = of(report, "seeds")
    num_seeds = int(mask.sum())
    size = options.get("batch_size", 50)
    kept = num_seeds // (size * world_size) * size * world_size if "drop_last" in options else num_seeds
    assert seeds.looked_at.get("seeds", 0) == kept
    assert some.ok
    assert str(report).startswith(f"{loader.name}: ")


def test_a_seed_that_comes_twice_or_never_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with DistNeighborLoader(DistDataset.from_pyg(shop()), [1], ("user", None), **OPTIONS) as loader:
        schedule = loader._schedule
        right = schedule.entries
        monkeypatch.setattr(schedule, "entries", lambda epoch, span: np.minimum(right(epoch, span), 58))
        report = audit(loader)
    assert [each.text for each in report.violations] == [
        "the seed at place 58 of the input comes 2 times in epoch 0",
        "the seed at place 59 of the input comes 0 times in epoch 0",
    ]


def test_seeds_that_are_drawn_by_weight_may_come_twice() -> None:
    with DistNeighborLoader(
        DistDataset.from_pyg(shop()), [1], ("user", None), seed_weights=torch.ones(_USERS), **OPTIONS
    ) as loader:
        assert of(audit(loader), "seeds")[0].unchecked == "seed_weights draws seeds with replacement"


# Splits


def built(tables: GraphTables) -> DistDataset:
    folder = MemoryFolder()
    build_graph(tables, folder, num_partitions=2)
    return DistDataset(Graph.open(folder))


def _edges(kind: Any, *, turned: bool = False) -> dict[Any, ArrayTable]:
    src, dst = LINKS.flip(0) if turned else LINKS
    return {kind: ArrayTable("edges", {"src": src.numpy(), "dst": dst.numpy()})}


SPLITS = EdgeSplits(fractions={"train": 0.6, "val": 0.4})


@pytest.mark.parametrize("held_out", [False, True])
def test_splits_of_a_type_and_its_reverse_are_disjoint(
    held_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = ("train",) if held_out else None
    tables = GraphTables(
        edges={**_edges(BUYS), **_edges(REV_BUYS, turned=True)},
        splits={BUYS: SPLITS, REV_BUYS: SPLITS},
        message_edges=messages,
    )
    report = audit(built(tables))
    assert report.ok
    [splits] = report.findings
    assert splits.looked_at == {"edges": 2 * _COUNT}
    # As version 0.2.0 built it: the reverse was only the reverse where it was declared.
    monkeypatch.setattr("gigl_loader.partition.steps.splits.with_equal_splits", lambda tables: tables)
    report = audit(built(tables))
    assert not report
    [splits] = report.findings
    words = {"is in held out", "a message edge"} if held_out else {"is in train (type", "val (type"}
    texts = [each.text for each in report.violations]
    assert len(texts) == 10
    for each in report.violations:
        assert each.edge is not None
        assert list(each.edge) in LINKS.t().tolist()
    assert splits.violations > (100 if held_out else 50)
    assert any(all(word in text for word in words) for text in texts) or held_out


@pytest.mark.parametrize("declared", [False, True])
def test_splits_of_an_undirected_graph_that_is_not_declared_are_found(declared: bool) -> None:
    both = torch.cat([LINKS, LINKS.flip(0)], dim=1)
    tables = replace(
        tables_from_pyg(
            Data(edge_index=both, num_nodes=_USERS),
            reverses={HOMOGENEOUS_EDGE: HOMOGENEOUS_EDGE} if declared else None,
        ),
        splits={HOMOGENEOUS_EDGE: SPLITS},
    )
    report = audit(built(tables))
    assert report.ok == declared
    if not declared:
        assert "is in train (type node,to,node) and in val (type node,to,node)" in str(report)


def test_splits_of_nodes_share_no_node() -> None:
    ids = {"train": np.arange(30), "val": np.arange(28, 50)}
    splits = {name: ArrayTable(name, {"id": each}) for name, each in ids.items()}
    tables = GraphTables(edges=_edges(BUYS), nodes={"user": NodeTable(count=_USERS, splits=splits)})
    report = audit(built(tables))
    assert [each.text for each in report.violations] == [
        f"node {node} of type user is in train and in val" for node in (28, 29)
    ]


# Arguments


def test_checks_and_batches_are_chosen() -> None:
    dataset = DistDataset.from_pyg(shop())
    shown: list[tuple[str, int, int]] = []
    with DistLinkNeighborLoader(dataset, [1], (BUYS, LINKS), **OPTIONS) as loader:
        first = next(iter(loader))
        report = audit(loader, checks=["seeds"], batches=2, progress=lambda *each: shown.append(each))
        assert [each.check for each in report.findings] == ["seeds"]
        assert report.subject == f"{loader.name}: 2 of 6 batches of epoch 0"
        assert shown == [("batches", 0, 2), ("batches", 1, 2), ("batches", 2, 2)]
        assert not torch.equal(first[BUYS].edge_label_index, next(loader)[BUYS].edge_label_index)
        for wrong, message in (({"checks": "seeds"}, "got 'seeds'"), ({"checks": []}, "got 'none'")):
            with pytest.raises(ValueError, match=f"checks are some of targets, .*{message}"):
                audit(loader, **wrong)
        with pytest.raises(ValueError, match="batches must be at least 1"):
            audit(loader, batches=0)
    with pytest.raises(TypeError):
        audit("graph")  # type: ignore[arg-type]


# Ledgers


def recorded(path: Path, dataset: DistDataset, **options: Any) -> Path:
    with DistLinkNeighborLoader(dataset, [-1], (BUYS, LINKS), **{**OPTIONS, **options}) as loader:
        loader.ledger(path)
        list(islice(loader, 4))
        state = loader.state_dict()
    with DistLinkNeighborLoader(dataset, [-1], (BUYS, LINKS), **{**OPTIONS, **options}) as loader:
        loader.load_state_dict({**state, "batches": 3})
        loader.ledger(path)
        list(loader)
    return path


def test_the_batches_of_a_ledger_are_audited(tmp_path: Path) -> None:
    dataset = DistDataset.from_pyg(shop())
    clean = recorded(tmp_path / "clean", dataset, exclude_targets=True)
    leak = recorded(tmp_path / "leak", dataset, exclude_targets=True, reverse_edge_types={}, shuffle=True)
    report = audit_ledgers([Recording.read(clean, lambda *_: True)], dataset)
    assert report.ok, report
    assert of(report, "seeds")[0].looked_at == {"seeds": _COUNT}
    report = audit_ledgers([Recording.read(leak, lambda epoch, batch: batch < 2)], dataset)
    assert {each.edge_type for each in report.violations} == {REV_BUYS}
    assert {each.batch for each in report.violations} <= {0, 1}


# The command


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "graph"
    build_graph(tables_from_pyg(shop(), time_attr="at"), path)
    return path


_SCRIPT = """
from gigl_loader import DistDataset, DistLinkNeighborLoader

BUYS = ("user", "buys", "item")


def make_loader(graph={graph!r}, *, excluded=True):
    return DistLinkNeighborLoader(
        DistDataset.open(graph), [-1], BUYS, batch_size=50, seed=1, num_workers=0, exclude_targets=excluded
    )


def nothing():
    return 3


number = 3
"""


@pytest.fixture(scope="module")
def script(graph: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "audited_script.py"
    path.write_text(_SCRIPT.format(graph=str(graph)))
    return path


def test_the_command_takes_a_function_of_a_script(script: Path) -> None:
    done = run_here("audit", f"{script}:make_loader")
    assert done.returncode == 0, done.stderr
    assert "links of user,buys,item, reverse item,rev_buys,user" in done.stdout
    assert "6 of 6 batches of epoch 0" in done.stdout
    done = run_here("audit", f"{script}:make_loader", "excluded=false", "-n", "1", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert not report["ok"]
    [example, *_] = report["findings"][0]["examples"]
    assert example["batch"] == 0
    assert LINKS[:, example["edge_id"]].tolist() in (example["edge"], example["edge"][::-1])


def test_the_command_takes_arguments_of_a_loader(graph: Path) -> None:
    words = ["num_neighbors=4,3", "edge_label_index=user,buys,item", "batch_size=64"]
    done = run_here("audit", str(graph), *words, "exclude_targets=true")
    assert done.returncode == 0, done.stderr
    done = run_here("audit", str(graph), *words)
    assert done.returncode == 1
    assert "exclude_targets=True removes them" in done.stdout
    assert "batch 0 of epoch 0: edge " in done.stdout
    nodes = ["num_neighbors=2", "input_nodes=user", "shuffle=true"]
    assert run_here("audit", str(graph), *nodes, "--epoch", "3", "--check", "seeds").returncode == 0
    anchors = ["num_neighbors=3", "supervision_edge_type=user,buys,item"]
    done = run_here("audit", str(graph), *anchors, 'input_nodes=["user"]')
    assert done.returncode == 2
    done = run_here("audit", str(graph), *anchors, "--json")
    assert json.loads(done.stdout)["ok"], done.stderr
    assert run_here("audit", str(graph)).returncode == 0


def test_the_command_takes_ledgers(graph: Path, tmp_path: Path) -> None:
    ledger = recorded(tmp_path / "run.jsonl", DistDataset.open(graph), exclude_targets=True)
    done = run_here("audit", str(ledger), "--graph", str(graph), "--batches", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["subject"] == f"{ledger}: 3 batches"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["GRAPH", "num_neighbors=2", "fanout=3"], "fanout"),
        (["GRAPH", "input_nodes=user"], "a loader needs its fanouts: num_neighbors=10,5"),
        (["GRAPH", "num_neighbors=2", "num_neighbors=3"], "num_neighbors is given twice"),
        (["GRAPH", "-n", "3"], "a graph alone has no batches"),
        (["GRAPH", "GRAPH"], "audit takes a function .*, ledgers of one run, or one graph"),
        (["num_neighbors=2"], "got nothing"),
        (["GRAPH", "--store", "h:1"], "or one graph"),
        (["SCRIPT:missing"], "has no missing"),
        (["SCRIPT:nothing"], "returns a int: it has to return a loader"),
        (["SCRIPT:number"], "is a int: name a function that returns a loader"),
        (["SCRIPT:make_loader", "excluded=7"], "exclude_targets must be"),
        (["SCRIPT:make_loader", "--graph", "x"], "opens its graph itself"),
        (["/nowhere/train.py:make_loader"], "no such file"),
        (["no.such.module:make_loader"], "there is no module no.such.module"),
        (["SCRIPT"], "audited_script.py is no ledger"),
        (["/nowhere"], "nowhere"),
        (["GRAPH", "--graph", "a", "--store", "h:1"], "give one of them"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(
    words: list[str], message: str, graph: Path, script: Path
) -> None:
    given = [word.replace("GRAPH", str(graph)).replace("SCRIPT", str(script)) for word in words]
    done = run_here("audit", *given)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("gigl-loader: ")
    assert re.search(message, line), line
