"""Plans from outside: read back equal, or refused with the rule."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column, EdgeSchema
from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.rpc.refusals import Refusal
from gigl_loader.sampling.frame_schema import FrameCounts
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.negatives import Negatives, NodeWeights
from gigl_loader.sampling.plan import BatchPlan, differences
from gigl_loader.sampling.plans import read_plan
from gigl_loader.sampling.plans.ablp import ABLPPlan
from gigl_loader.sampling.plans.custom import UserCode
from gigl_loader.sampling.plans.link import LinkPlan
from gigl_loader.sampling.plans.ppr import PPR as PPRAround
from gigl_loader.sampling.plans.ppr import PPRChannel, PPRPlan
from gigl_loader.sampling.plans.walks import WalkPath, WalkPlan, Walks
from gigl_server.admission import Limits
from gigl_server.sessions.registry import read_request
from tests.support.plans import neighbor_plan, with_sampler
from tests.support.stores import store_graphs

SCHEMA = store_graphs()[0].graph.schema
EDGE = ("user", "likes", "item")
TRUSTS = ("user", "trusts", "user")
PLAN = neighbor_plan(
    seed_type="item",
    num_neighbors={EDGE: (3, -1), ("user", "trusts", "user"): (0, 2)},
    run_seed=2**64 - 1,
    replace=True,
    with_edge=True,
    node_columns={"user": ("x", "y"), "item": ()},
    edge_columns={EDGE: ("w",)},
)

LINKS = BatchPlan(
    sampler=LinkPlan(
        edge_type=EDGE,
        hops=KHop(num_neighbors={EDGE: (3, -1), ("user", "trusts", "user"): (0, 2)}, with_edge=True),
        negatives=Negatives(
            mode="binary",
            amount=1.5,
            strict=True,
            src_weight=NodeWeights(np.arange(SCHEMA.nodes["user"].count, dtype=np.float32)),
        ),
        excluded=(EDGE,),
    ),
    run_seed=3,
)


ANCHORS = BatchPlan(
    sampler=ABLPPlan(
        supervision=(EDGE,),
        hops=KHop(num_neighbors={EDGE: (3,)}),
        max_labels=4,
        random_negatives=7,
        exclude=True,
    ),
    run_seed=3,
)


WALKS = BatchPlan(
    sampler=WalkPlan(
        seed_type="user", path=(("user", "trusts", "user"),) * 3, walks_per_seed=2, p=0.5, q=2.0
    ),
    run_seed=3,
)

PPR = BatchPlan(
    sampler=PPRPlan(
        seed_type="user",
        alpha=0.5,
        eps=1e-4,
        max_ppr_nodes=50,
        enable_residual_topup=True,
        num_neighbors_per_hop=1000,
        max_fetch_iterations=None,
    ),
    run_seed=3,
)


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PLAN.to_json())
    return found


def test_a_plan_is_read_back_equal() -> None:
    assert read_plan(PLAN.to_json(), SCHEMA) == PLAN
    bare = neighbor_plan(seed_type="user", num_neighbors={}, run_seed=0, node_columns={}, edge_columns={})
    assert read_plan(bare.to_json(), SCHEMA) == bare


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the plan is not JSON"),
        ("{", "the plan is not JSON"),
        ("[]", "a plan is a JSON object, not list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1, "a": 2}', "a name comes twice"),
        ("{}", "the plan lacks node_columns: are the versions equal?"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plan(text, SCHEMA)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("module", "os", "unknown field 'module' of the plan: are the versions equal?"),
        ("seed_type", "tag", "no node type 'tag'; known: "),
        ("seed_type", ["item"], "no node type"),
        ("seed_type", {"a": 1}, "no node type"),
        ("run_seed", -1, "run seed must lie in"),
        ("run_seed", 2**64, "run seed must lie in"),
        ("run_seed", 1.5, "run_seed is a whole number, got 1.5"),
        ("run_seed", True, "run_seed is a whole number, got True"),
        ("replace", 1, "replace is true or false, got 1"),
        ("num_neighbors", {}, "num_neighbors is a list of pairs"),
        ("num_neighbors", [[list(EDGE)]], "num_neighbors is a list of pairs"),
        ("num_neighbors", [["likes", [1]]], "an edge type is a list of three names"),
        ("num_neighbors", [[["user", "hates", "item"], [1]]], "no edge type"),
        ("num_neighbors", [[list(EDGE), [1]], [list(EDGE), [2]]], "an edge type twice"),
        ("num_neighbors", [[list(EDGE), 3]], "a list of at most 254 numbers"),
        ("num_neighbors", [[list(EDGE), [0] * 255]], "a list of at most 254 numbers"),
        ("num_neighbors", [[list(EDGE), [-2]]], "fanout -2"),
        ("num_neighbors", [[list(EDGE), [2**31]]], "is 2147483648 or more"),
        ("num_neighbors", [[list(EDGE), ["3"]]], "a whole number, got '3'"),
        ("num_neighbors", [[list(EDGE), [1]], [["user", "trusts", "user"], [1, 2]]], "hops must be the same"),
        ("node_columns", [], "node_columns is an object of lists"),
        ("node_columns", {"tag": []}, "no node type 'tag'"),
        ("node_columns", {"user": ["z"]}, "'user' has no column 'z'; known: "),
        ("node_columns", {"user": ["x", "x"]}, "comes twice"),
        ("node_columns", {"user": "x"}, "are a list of names"),
        ("edge_columns", [[list(EDGE), [1]]], "are a list of names"),
        ("edge_columns", [[list(EDGE), ["x"]]], "has no column 'x'"),
    ],
)
def test_each_rule_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        read_plan(json.dumps({**document(), field: value}), SCHEMA)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_differences_name_the_fields_with_both_values() -> None:
    other = with_sampler(replace(PLAN, run_seed=5), with_edge=False)
    text = "run_seed is 18446744073709551615 there and 5 here, with_edge is True there and False here"
    assert differences(PLAN.to_json(), other.to_json()) == text


def test_types_of_subgraphs_are_written_unless_they_are_the_default() -> None:
    assert "subgraph_type" not in PLAN.to_json()
    assert "subgraph_type" not in LINKS.to_json()
    induced = with_sampler(PLAN, subgraph_type="induced")
    assert read_plan(induced.to_json(), SCHEMA) == induced
    for value, message in (
        ("both", "must be one of directional, bidirectional, induced, got 'both'"),
        (1, "subgraph_type is a text, got 1"),
        ("bidirectional", "need the edge type .*rev_likes"),
    ):
        with pytest.raises(ValueError, match=message):
            read_plan(json.dumps({**document(), "subgraph_type": value}), SCHEMA)
    with pytest.raises(ValueError, match="leave disjoint out"):
        read_plan(json.dumps({**json.loads(induced.to_json()), "disjoint": True}), SCHEMA)


def test_windows_and_monotone_draws_are_written_unless_they_are_the_default() -> None:
    columns = {"t": Column("I64"), "w": Column("F32")}
    edges = {
        each: EdgeSchema(count=9, wide_indices=False, columns=columns, times=("t",)) for each in SCHEMA.edges
    }
    schema = replace(SCHEMA, edges=edges)
    timed = with_sampler(PLAN, disjoint=True, time_attr="t", with_times=True)
    names = ("monotone", "time_window", "with_starts", "strictly_earlier")
    assert not any(name in json.loads(timed.to_json()) for name in names)
    for given in (
        {"monotone": True, "time_window": 5},
        {"time_window": (-(2**63), 3)},
        {"with_starts": True},
        {"strictly_earlier": True, "time_window": 5},
    ):
        plan = with_sampler(timed, **given)
        assert read_plan(plan.to_json(), schema) == plan
        assert {name for name in names if name in json.loads(plan.to_json())} == set(given)
    for field, value, message in (
        ("monotone", 1, "monotone is true or false, got 1"),
        ("strictly_earlier", 1, "strictly_earlier is true or false, got 1"),
        ("time_window", "day", "time_window is a whole number or two, of 64 bits, got 'day'"),
        ("time_window", [1], "a whole number or two"),
        ("time_window", True, "a whole number or two"),
        ("time_window", 2**63, "of 64 bits"),
        ("time_window", -1, "-1 is negative"),
        ("time_window", [3, 1], "ends before it begins"),
    ):
        with pytest.raises(ValueError, match=message):
            read_plan(json.dumps({**json.loads(timed.to_json()), field: value}), schema)
    for name in ("monotone", "strictly_earlier"):
        with pytest.raises(ValueError, match="need time_attr"):
            read_plan(json.dumps({**document(), name: True}), SCHEMA)
    for empty in (0, (3, 3)):
        with pytest.raises(ValueError, match=r"time_window .* is empty with temporal_comparison '<'"):
            with_sampler(timed, strictly_earlier=True, time_window=empty)
    with pytest.raises(ValueError, match="not both"):
        with_sampler(timed, monotone=True, last=True, replace=False)


def test_a_plan_of_links_is_read_as_it_was_written() -> None:
    assert read_plan(LINKS.to_json(), SCHEMA) == LINKS
    bare = with_sampler(LINKS, negatives=None, excluded=(), excluded_reverse=())
    given = with_sampler(bare, given=3)
    custom = with_sampler(bare, custom=UserCode("mine:Hard", {"k": [1, None]}))
    for plan in (bare, given, custom):
        assert read_plan(plan.to_json(), SCHEMA) == plan
    assert "given" not in LINKS.to_json()
    assert "custom" not in LINKS.to_json()
    with pytest.raises(ValueError, match="sampler mine:Hard is not allowed here: start the server"):
        read_plan(custom.to_json(), SCHEMA, allowed_samplers=("mine:Other",))


def test_positions_of_given_negatives_are_checked_where_they_arrive() -> None:
    [column] = [
        each for each in with_sampler(LINKS, negatives=None, given=2).inputs if each.name == "negatives"
    ]
    count = SCHEMA.nodes["item"].count

    def read(*rows: list[int]) -> Any:
        message = SampleRequest(index=np.arange(2).tobytes(), inputs=np.array(rows).tobytes())
        return read_request(message, [column], schema=SCHEMA, limits=Limits()).inputs["negatives"]

    assert read([-1, 0], [count - 1, -1]).tolist() == [[-1, 0], [count - 1, -1]]
    for wrong in (-2, count):
        with pytest.raises(Refusal, match=f"lie outside of {count} nodes"):
            read([0, 0], [0, wrong])
    with pytest.raises(Refusal, match="2 entries of negatives take 32 bytes, got 16"):
        read([0, 0])


def test_negatives_of_a_frame_are_rows_of_equal_lengths() -> None:
    plan = with_sampler(LINKS, negatives=None, custom=UserCode("mine:Hard"))
    schema = plan.frame(SCHEMA)
    cases = {(4, -1): None, (4, -2): "leaves the nodes", (5, -1): "'neg_dst' has 5 values, no rows of 2"}
    for (length, value), message in cases.items():
        counts = FrameCounts(
            epoch=0,
            batch=0,
            num_entries=2,
            num_nodes={each.name: [1, 0, 0] for each in schema.nodes},
            num_edges={each.name: [0, 0] for each in schema.edges},
            num_targets={each.name: 0 for each in schema.edges},
            lengths={"src": 2, "dst": 2, "neg_dst": length},
        )
        layout = schema.layout(counts)
        buffer = np.zeros(layout.nbytes, np.uint8)
        buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        layout.view(buffer, "neg_dst")[:] = value
        with pytest.raises(FormatError, match=message) if message else nullcontext():
            schema.parse(buffer)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("edge_type", "likes", "an edge type is a list of three names"),
        ("edge_type", ["user", "hates", "item"], "no edge type"),
        ("excluded", "likes", "excluded is a list of edge types"),
        ("excluded", [["user", "trusts", "user"]], "cannot be excluded with links"),
        ("excluded_reverse", [list(EDGE)], "cannot be excluded with links"),
        ("given", 3, "negatives are drawn, given or a user's: one of these"),
        ("given", -1, "given negatives of a link are 0 to 1048576, got -1"),
        ("given", 2**62, "given negatives of a link are 0 to"),
        ("given", "3", "given is a whole number, got '3'"),
        ("custom", {"sampler": "mine:Hard", "arguments": {}}, "one of these"),
        ("custom", {"sampler": "mine:Hard"}, "custom is an object of sampler and arguments"),
        ("custom", {"sampler": "no name", "arguments": {}}, "must be package.module:Class"),
        ("custom", {"sampler": "mine:Hard", "arguments": []}, "arguments of a custom sampler are an object"),
        ("negatives", [], "an object of mode, amount and strict"),
        ("negatives", {"mode": "ternary", "amount": 1, "strict": False}, "an object of mode, amount"),
        ("negatives", {"mode": "binary", "amount": True, "strict": False}, "an object of mode, amount"),
        ("negatives", {"mode": "binary", "amount": 1, "strict": 1}, "an object of mode, amount"),
        ("negatives", {"mode": "binary", "amount": -1, "strict": False}, "must lie in"),
        ("negatives", {"mode": "binary", "amount": 1e18, "strict": False}, "must lie in"),
        ("negatives", {"mode": "binary", "amount": float("nan"), "strict": False}, "must lie in"),
        ("negatives", {"mode": "triplet", "amount": 0.5, "strict": False}, "a whole number"),
        ("negatives", {"mode": "binary", "amount": 1, "strict": False, "more": 1}, "unknown field 'more'"),
        (
            "negatives",
            {"mode": "binary", "amount": 1, "strict": False, "dst_weight": "AAAA"},
            "dst_weight is not the base64 text of",
        ),
        ("negatives", {"mode": "binary", "amount": 1, "strict": False, "dst_weight": 7}, "is not the base64"),
    ],
)
def test_each_rule_of_links_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plan(json.dumps({**json.loads(LINKS.to_json()), field: value}), SCHEMA)


def test_a_plan_of_anchors_is_read_as_it_was_written() -> None:
    assert read_plan(ANCHORS.to_json(), SCHEMA) == ANCHORS
    bare = with_sampler(ANCHORS, max_labels=None, random_negatives=0, exclude=False)
    assert read_plan(bare.to_json(), SCHEMA) == bare


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("supervision", [], "at least one"),
        ("supervision", [list(EDGE)] * 2, "are different"),
        ("supervision", [["item", "liked", "user"]], "no edge type"),
        ("max_labels", 0, "max_labels must lie in"),
        ("max_labels", 2**31, "max_labels must lie in"),
        ("max_labels", 1.5, "max_labels is a whole number or null"),
        ("random_negatives", -1, "random_negatives must lie in"),
        ("random_negatives", 2**24, "random_negatives must lie in"),
        ("random_negatives", None, "random_negatives is a whole number"),
        ("exclude", 1, "exclude is true or false, got 1"),
        ("num_neighbors", [[list(EDGE), [1] * 254]], "at most 253 hops beside labels"),
    ],
)
def test_each_rule_of_anchors_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plan(json.dumps({**json.loads(ANCHORS.to_json()), field: value}), SCHEMA)


def test_a_plan_of_walks_is_read_as_it_was_written() -> None:
    assert read_plan(WALKS.to_json(), SCHEMA) == WALKS
    visits = with_sampler(WALKS, p=1.0, q=1.0, top_k=4)
    assert read_plan(visits.to_json(), SCHEMA) == visits


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("path", [], "walk_length must lie in"),
        ("path", [list(EDGE)], "would be at|and would be"),
        ("path", [["user", "trusts", "user"]] * 254, "walk_length must lie in"),
        ("period", 4, "cannot repeat after 4"),
        ("walks_per_seed", 0, "walks_per_seed must lie in"),
        ("walks_per_seed", 2**20, "walks_per_seed must lie in"),
        ("p", "1", "p and q are numbers"),
        ("q", 0, "q must lie in"),
        ("top_k", 0, "top_k must lie in"),
        ("top_k", True, "top_k is a whole number or null"),
    ],
)
def test_each_rule_of_walks_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plan(json.dumps({**json.loads(WALKS.to_json()), field: value}), SCHEMA)


def test_a_plan_of_pagerank_is_read_as_it_was_written() -> None:
    assert read_plan(PPR.to_json(), SCHEMA) == PPR
    short = with_sampler(PPR, max_fetch_iterations=2, enable_residual_topup=False)
    assert read_plan(short.to_json(), SCHEMA) == short
    path = PPRChannel(share=20, steps=((EDGE,), (EDGE, TRUSTS)), repeat_from=None)
    channels = (PPRChannel(share=30, steps=((TRUSTS,),)), path)
    typed = with_sampler(PPR, channels=channels, include_sampled_edges=True, with_edge=True)
    assert read_plan(typed.to_json(), SCHEMA) == typed
    assert "channels" not in PPR.to_json()  # States of version 0.1 stay readable.


def test_plans_of_what_lies_around_anchors_are_read_as_they_were_written() -> None:
    assert "around" not in ANCHORS.to_json()
    pagerank = PPRAround(**{each.name: getattr(PPR.sampler, each.name) for each in fields(PPRAround)})
    walks = Walks(paths=(WalkPath("user", (TRUSTS,) * 3),), walks_per_seed=2)
    for around in (pagerank, walks):
        plan = with_sampler(ANCHORS, hops=around)
        assert read_plan(plan.to_json(), SCHEMA) == plan
    written = json.loads(with_sampler(ANCHORS, hops=walks).to_json())
    for changes, message in (
        ({"around": "seas"}, "nothing is sampled by 'seas'; known: hops, ppr, walk"),
        ({"paths": 1}, "paths are lists of"),
        ({"paths": [["user", 1]]}, "paths are lists of"),
        ({"paths": [["tag", 1, [list(TRUSTS)]]]}, "paths start at node types"),
        ({"paths": []}, "a path, one for each node type"),
        ({"reverses": [list(EDGE)]}, "reverses are pairs"),
        ({"reverses": [list(EDGE), list(TRUSTS)]}, "are no edges from 'item' to 'user'"),
    ):
        with pytest.raises(ValueError, match=message):
            read_plan(json.dumps({**written, **changes}), SCHEMA)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed_type", "tag", "no node type 'tag'"),
        ("alpha", 1.0, "alpha must lie in"),
        ("alpha", 0.0, "alpha must lie in"),
        ("alpha", float("nan"), "alpha must lie in"),
        ("alpha", "0.5", "alpha and eps are numbers"),
        ("alpha", 10**400, "alpha and eps are numbers"),
        ("eps", 1e-10, "eps must lie in"),
        ("eps", float("inf"), "eps must lie in"),
        ("eps", True, "alpha and eps are numbers"),
        ("max_ppr_nodes", 0, "max_ppr_nodes must lie in"),
        ("max_ppr_nodes", 2**31, "max_ppr_nodes must lie in"),
        ("enable_residual_topup", 1, "enable_residual_topup is true or false, got 1"),
        ("num_neighbors_per_hop", -1, "num_neighbors_per_hop must lie in"),
        ("num_neighbors_per_hop", 2**31, "num_neighbors_per_hop must lie in"),
        ("max_fetch_iterations", 0, "max_fetch_iterations must lie in"),
        ("max_fetch_iterations", 1.0, "max_fetch_iterations is a whole number or null"),
        ("channels", 1, "channels are a list"),
        ("channels", [[50, 0]], "a channel is a list of"),
        ("channels", [[True, 0, [[list(EDGE)]]]], "the share of a channel is a number"),
        ("channels", [[49, 0, [[list(EDGE)]]]], "the shares of channels add up to max_ppr_nodes"),
        ("channels", [[50, 1, [[list(EDGE)]]]], "repeat_from must be a step, 0 to 0"),
        ("channels", [[50, 0, []]], "1 to 64 steps"),
        ("channels", [[50, 0, [[["a", "b", "c"]]]]], "no edge type"),
        ("channels", [[50, 0, [[list(EDGE)]]], *[[0, 0, [[list(EDGE)]]]] * 64], "at most 64 channels"),
        ("weight_attr", "no", "not declared as a weight"),
    ],
)
def test_each_rule_of_pagerank_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plan(json.dumps({**json.loads(PPR.to_json()), field: value}), SCHEMA)
