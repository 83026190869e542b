"""Checks of sampled batches: no target among the message edges, no edge later than its seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gigl_loader.graph.reverses import reverses_of
from gigl_loader.graph.schema import type_name
from gigl_loader.loaders.audit_report import Tally, Violation
from gigl_loader.loaders.leaks import ReverseEvidence, first_fanout
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.plans.ablp import ABLPPlan, excluded_types, pair_arrays
from gigl_loader.sampling.plans.link import LinkPlan
from gigl_loader.sampling.request import SEED_TIME, SEED_TYPE

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.channel.frame import Frame
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.audit_report import Check, Finding
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.plan import BatchPlan, SamplerPlan
    from gigl_loader.sampling.request import BatchRequest


class Edges(NamedTuple):
    """Edges of one type in a batch, in the direction of the graph: local nodes and edge ids, [E] each."""

    src: Array
    dst: Array
    ids: Int64Array | None
    """``None`` where the batch has no edge ids."""

    def at(self, place: int) -> tuple[int, int]:
        """Return the local nodes of an edge."""
        return int(self.src[place]), int(self.dst[place])


@dataclass(frozen=True, slots=True)
class AuditedBatch:
    """A batch, and the request that it was made of."""

    frame: Frame
    request: BatchRequest
    schema: GraphSchema

    def node_ids(self, kind: NodeType) -> Int64Array:
        """Return the node ids of a type, int64 [N]."""
        return self.frame.array(f"node/{type_name(kind)}/n_id")

    def column(self, kind: NodeType | EdgeType, name: str) -> Array:
        """Return a column as int64 [N]."""
        of = "node" if isinstance(kind, str) else "edge"
        values = self.frame.array(f"{of}/{type_name(kind)}/{type_name(name)}")
        return values.astype(np.int64, copy=False).reshape(len(values))

    def drawn(self, kind: EdgeType) -> tuple[Array, Array, Int64Array | None]:
        """Return the drawn edges of a type: local neighbours and targets, and edge ids, [E] each."""
        prefix = f"edge/{type_name(kind)}"
        rows, colptr = self.frame.array(f"{prefix}/rows"), self.frame.array(f"{prefix}/colptr")
        targets = np.repeat(np.arange(len(colptr) - 1), np.diff(colptr))
        ids = f"{prefix}/e_id"
        return rows, targets, self.frame.array(ids) if ids in self.frame.layout.specs else None

    def edges(self, kind: EdgeType, reverse: EdgeType | None) -> Edges:
        """Return the message edges of a type. ``reverse``: the type whose edges are added, turned round."""
        neighbors, targets, ids = self.drawn(kind)
        if reverse is not None:
            places = self.frame.array(f"merged/{type_name(kind)}")
            other_neighbors, other_targets, other_ids = self.drawn(reverse)
            neighbors = np.concatenate([neighbors, other_targets])[places]
            targets = np.concatenate([targets, other_neighbors])[places]
            if ids is not None and other_ids is not None:
                ids = np.concatenate([ids, other_ids])[places]
        ends = (neighbors, targets) if self.schema.edge_dir == "in" else (targets, neighbors)
        return Edges(*ends, ids)

    def violation(self, check: Check, kind: EdgeType, edges: Edges, rule: str, place: int) -> Violation:
        """Return the violation of a rule by the edge at a place."""
        ends = edges.at(place)
        src, dst = (int(self.node_ids(end)[local]) for end, local in zip(kind[::2], ends, strict=True))
        number = "" if edges.ids is None else f" {edges.ids[place]}"
        request = self.request
        return Violation(
            check=check,
            text=(
                f"batch {request.number} of epoch {request.epoch}: edge{number} of type {','.join(kind)}, "
                f"from {src} to {dst}, {rule}"
            ),
            epoch=request.epoch,
            batch=request.number,
            edge_type=kind,
            edge=(src, dst),
            edge_id=None if edges.ids is None else int(edges.ids[place]),
        )


def audited_plan(plan: BatchPlan, schema: GraphSchema) -> BatchPlan:
    """Return the plan of the same batches with edge ids, and with times in place of its columns."""
    sampler: Any = plan.sampler
    if isinstance(sampler, KHop):
        sampler = replace(sampler, with_edge=True)
    elif isinstance(getattr(sampler, "hops", None), KHop):
        sampler = replace(sampler, hops=replace(sampler.hops, with_edge=True))
    times = {column: None for column in times_of(sampler, schema).values() if column is not None}
    nodes = {kind: (name,) for kind, name in times if isinstance(kind, str)}
    edges = {kind: (name,) for kind, name in times if not isinstance(kind, str)}
    return replace(plan, sampler=sampler, columns=ColumnPlan(nodes=nodes, edges=edges))


def times_of(
    sampler: SamplerPlan, schema: GraphSchema
) -> dict[EdgeType, tuple[NodeType | EdgeType, str] | None]:
    """Return the column that bounds each edge type in time: of its edges, or of their neighbours."""
    hops = getattr(sampler, "hops", sampler)
    if not isinstance(hops, KHop) or hops.time_attr is None:
        return {}
    found: dict[EdgeType, tuple[NodeType | EdgeType, str] | None] = {}
    for kind in hops.num_neighbors:
        name = hops.time(schema, kind)
        holder = kind if name in schema.edges[kind].times else schema.neighbor_type(kind)
        found[kind] = (holder, name) if name is not None and name in schema.columns[holder] else None
    return found


class TargetCheck:
    """No message edge of a batch is one of its links or labels, nor the reverse of one."""

    def __init__(
        self, schema: GraphSchema, plan: BatchPlan, reverses: Mapping[EdgeType, Collection[EdgeType]]
    ) -> None:
        """``reverses``: by type of the targets, what the user says of its reverse types."""
        self._schema, self._sampler = schema, plan.sampler
        frame = plan.frame(schema)
        kinds = [each.kind for each in frame.edges if not isinstance(each.kind, str)]
        names = {type_name(kind): kind for kind in kinds}
        self._merged = {names[each.edges[0]]: names[each.edges[1]] for each in frame.computed if each.edges}
        self._disjoint = frame.disjoint
        self._tallies: dict[EdgeType, Tally] = {}
        self._turned: dict[EdgeType, list[EdgeType]] = {}
        self._suspects: dict[tuple[EdgeType, EdgeType], _Suspect] = {}
        self._own: dict[EdgeType, list[EdgeType]] = {}
        self._kinds = kinds
        for kind in _target_types(plan.sampler):
            own, turned = _joining(schema, plan.sampler, kind, reverses)
            self._own[kind] = [each for each in own if each in kinds]
            self._turned[kind] = [each for each in turned if each in kinds]
            what = _TARGETS[type(plan.sampler)]
            self._tallies[kind] = Tally("targets", f"{what} {_names(kind, turned)}", _remedy(plan.sampler))
            if kind not in reverses:
                self._suspects |= {
                    (kind, each): _Suspect(kind, ReverseEvidence(schema, each, _fanout(plan.sampler, each)))
                    for each in kinds
                    if each[::2] == kind[::-2] and each not in turned
                }

    def look(self, batch: AuditedBatch) -> None:
        """Look at a batch."""
        edges = {kind: batch.edges(kind, self._merged.get(kind)) for kind in self._kinds}
        for kind, tally in self._tallies.items():
            sources, targets = _pairs(batch.frame, self._schema, self._sampler, kind)
            tally.looked(targets=len(sources))
            codes = [self._codes(batch, end) for end in kind[::2]]
            wanted = codes[0][sources] * _WIDTH + codes[1][targets]
            for each, ends in self._joined(kind, edges):
                found = np.flatnonzero(np.isin(codes[0][ends[0]] * _WIDTH + codes[1][ends[1]], wanted))
                tally.looked(edges=len(ends[0]))
                rule = (
                    f"is a target of the batch{'' if ends[0] is edges[each].src else ' the other way round'}"
                )
                tally.found(found, partial(batch.violation, "targets", each, edges[each], rule))
        for (kind, each), suspect in self._suspects.items():
            suspect.look(batch, edges[each], *_pairs(batch.frame, self._schema, self._sampler, kind))

    def findings(self) -> list[Finding]:
        """Return a finding for each type of targets."""
        if not self._tallies:
            return [Tally("targets", "links and labels").finding("seeds are nodes")]
        for suspect in self._suspects.values():
            suspect.tell(self._tallies[suspect.kind])
        without = None if self._kinds else "batches have no message edges"
        return [tally.finding(without) for tally in self._tallies.values()]

    def _joined(self, kind: EdgeType, edges: Mapping[EdgeType, Edges]) -> Any:
        """Yield the edges that may be targets: their type, and their ends in the order of the targets."""
        for each in self._own[kind]:
            yield each, (edges[each].src, edges[each].dst)
        for each in self._turned[kind]:
            yield each, (edges[each].dst, edges[each].src)

    def _codes(self, batch: AuditedBatch, kind: NodeType) -> Int64Array:
        """Return a number for each local node, int64 [N]. A node has one number in all trees."""
        node_ids = batch.node_ids(kind)
        if not self._disjoint:
            return np.arange(len(node_ids))
        return np.unique(node_ids, return_inverse=True)[1].astype(np.int64).reshape(-1)


_WIDTH = 1 << 31
"""More than the nodes of one type in a batch."""
_TARGETS: Mapping[type[Any], str] = {LinkPlan: "links", ABLPPlan: "labels"}


class _Suspect:
    """Edge type between the ends of targets that may hold them the other way round, undeclared."""

    def __init__(self, kind: EdgeType, evidence: ReverseEvidence) -> None:
        self.kind, self._evidence = kind, evidence
        self._example: Violation | None = None

    def look(self, batch: AuditedBatch, edges: Edges, sources: Array, targets: Array) -> None:
        """Look for the targets of a batch, local nodes [P]."""
        is_there = self._evidence.look(batch.frame, sources, targets)
        if self._example is None and is_there.any():
            first = int(np.flatnonzero(is_there)[0])
            is_it = (edges.src == targets[first]) & (edges.dst == sources[first])
            rule = (
                "is a target of the batch the other way round, and its type is no declared reverse: pass "
                "reverse_edge_types"
            )
            [place, *_] = np.flatnonzero(is_it).tolist()
            self._example = batch.violation("targets", self._evidence.edge_type, edges, rule, place)

    def tell(self, tally: Tally) -> None:
        """Add the violations to those of the targets, where the type holds enough of them."""
        if self._example is not None and self._evidence.is_enough:
            tally.examples.append(self._example)
            tally.violations += self._evidence.found


def _fanout(sampler: SamplerPlan, edge_type: EdgeType) -> int:
    hops = getattr(sampler, "hops", sampler)
    return first_fanout(hops, edge_type) if isinstance(hops, KHop) else -1


def _target_types(sampler: SamplerPlan) -> tuple[EdgeType, ...]:
    if isinstance(sampler, LinkPlan):
        return (sampler.edge_type,)
    return sampler.supervision if isinstance(sampler, ABLPPlan) else ()


def _remedy(sampler: SamplerPlan) -> str:
    is_on = sampler.exclude if isinstance(sampler, ABLPPlan) else bool(getattr(sampler, "excluded", ()))
    return "" if is_on else "exclude_targets=True removes them"


def _joining(
    schema: GraphSchema,
    sampler: SamplerPlan,
    kind: EdgeType,
    reverses: Mapping[EdgeType, Collection[EdgeType]],
) -> tuple[list[EdgeType], list[EdgeType]]:
    """Return the edge types that join targets of a type, and those that join them the other way round."""
    if isinstance(sampler, ABLPPlan):
        types = excluded_types(schema, sampler, kind)
        return [each for each, turned in types if not turned], [each for each, turned in types if turned]
    assert isinstance(sampler, LinkPlan)
    by_name = reverses_of(kind, schema.edges, schema.reverses)
    turned = reverses.get(kind, (*sampler.excluded_reverse, *by_name))
    return [kind] if kind in schema.edges else [], list(dict.fromkeys(turned))


def _pairs(frame: Frame, schema: GraphSchema, sampler: SamplerPlan, kind: EdgeType) -> tuple[Array, Array]:
    """Return the targets of a batch: local sources and destinations, int32 [P]."""
    if isinstance(sampler, LinkPlan):
        return frame.array("src"), frame.array("dst")
    names = [pair_arrays(kind, sign) for sign in schema.label_lists(kind)]
    found = [[frame.array(name) for name in pair] for pair in names]
    sources, targets = (np.concatenate(ends) for ends in zip(*found, strict=True))
    return sources, targets


def _names(kind: EdgeType, turned: Collection[EdgeType]) -> str:
    reverses = ", ".join(",".join(each) for each in turned)
    return f"of {','.join(kind)}" + (f", reverse {reverses}" if reverses else ", without a reverse")


class TimeCheck:
    """No edge of a batch is later than the seed of its tree."""

    def __init__(self, schema: GraphSchema, plan: BatchPlan) -> None:
        hops = getattr(plan.sampler, "hops", plan.sampler)
        self._hops: KHop | None = hops if isinstance(hops, KHop) and hops.time_attr is not None else None
        self._schema = schema
        self._columns = times_of(plan.sampler, schema)
        self._tallies = {
            kind: Tally("times", f"{column[1]} of {_shown(column[0])}, for edges {','.join(kind)}")
            for kind, column in self._columns.items()
            if column is not None
        }

    def look(self, batch: AuditedBatch) -> None:
        """Look at a batch."""
        if self._hops is None:
            return
        latest = batch.frame.array(SEED_TIME)
        if SEED_TYPE in batch.frame.layout.specs:  # Trees are numbered type after type.
            latest = latest[np.argsort(batch.frame.array(SEED_TYPE), kind="stable")]
        if isinstance(self._hops.time_window, tuple):
            latest = np.minimum(latest, self._hops.time_window[1])
        for kind, tally in self._tallies.items():
            column = self._columns[kind]
            assert column is not None
            neighbors, targets, ids = batch.drawn(kind)
            times = batch.column(*column)
            times = times if column[0] == kind else times[neighbors]
            trees = batch.frame.array(f"node/{type_name(self._schema.target_type(kind))}/tree")
            bounds = latest[trees[targets]]
            late = np.flatnonzero(times >= bounds if self._hops.strictly_earlier else times > bounds)
            tally.looked(edges=len(times))
            ends = (neighbors, targets) if self._schema.edge_dir == "in" else (targets, neighbors)
            tally.found(late, partial(self._late, batch, kind, Edges(*ends, ids), times=times, bounds=bounds))

    def _late(
        self, batch: AuditedBatch, kind: EdgeType, edges: Edges, place: int, *, times: Array, bounds: Array
    ) -> Violation:
        assert self._hops is not None
        word = "not earlier" if self._hops.strictly_earlier else "later"
        rule = f"at {times[place]}, is {word} than its seed at {bounds[place]}"
        return batch.violation("times", kind, edges, rule, place)

    def findings(self) -> list[Finding]:
        """Return a finding for each edge type that is bound in time."""
        if self._hops is None:
            return [Tally("times", "edges and seeds").finding("no time_attr")]
        unbound = [",".join(kind) for kind, column in self._columns.items() if column is None]
        rest = [Tally("times", f"edges {', '.join(unbound)}").finding("without times")] if unbound else []
        return [*(tally.finding() for tally in self._tallies.values()), *rest]


def _shown(kind: NodeType | EdgeType) -> str:
    return kind if isinstance(kind, str) else ",".join(kind)
