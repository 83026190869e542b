"""Plan of batches that a user's own class samples."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from gigl_loader.options import check_sampler_name
from gigl_loader.sampling.custom import CustomSampler
from gigl_loader.sampling.frame_schema import FrameSchema
from gigl_loader.sampling.request import SEED, InputColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.plan import ColumnPlan, PlanFields, SamplerArguments, SamplerContext
    from gigl_loader.sampling.source import PlanSampler

_MAX_ARGUMENTS = 1 << 16


class CustomSamplerOptions:
    """A user's own sampler: the class at ``"package.module:Class"`` and its keyword arguments.

    The class is imported where batches are sampled: in this process (``num_workers=0``), in sampling
    processes, or on storage servers that were started with ``--allow-sampler package.module:Class``. The page
    ``docs/custom-samplers.md`` shows one. Arguments are plain values, as JSON has them.
    """

    __slots__ = ("_arguments", "_sampler")

    def __init__(self, sampler: str, /, **arguments: Any) -> None:
        """``ValueError`` for what is no such name, or arguments that JSON does not give back equal."""
        self._sampler = check_sampler_name("a custom sampler", sampler)
        self._arguments = _checked_arguments(arguments)

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> CustomPlan:
        if arguments.time_attr is not None:
            raise ValueError(
                "time_attr has no meaning for a sampler of one's own: pass what it needs as its arguments"
            )
        if arguments.subgraph_type != "directional":
            raise ValueError("subgraph_type has no meaning for a custom sampler: its class returns the edges")
        if arguments.disjoint:
            raise ValueError("disjoint trees have no meaning for a custom sampler")
        if arguments.num_neighbors is not None or arguments.weight_attr is not None:
            raise ValueError(
                "num_neighbors and weight_attr have no meaning for a custom sampler: pass None, and what the "
                f"class {self._sampler} takes to CustomSamplerOptions"
            )
        if arguments.replace:
            raise ValueError("replace=True has no meaning for a custom sampler: its class says how it draws")
        return CustomPlan(
            seed_type=seed_type,
            sampler=self._sampler,
            arguments=self._arguments,
            with_edge=arguments.returns_edge_ids(schema),
        )

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self._arguments.items())
        return f"CustomSamplerOptions({self._sampler!r}{given})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomPlan:
    """Subgraphs around seed nodes of one type, made by a user's class."""

    kind: ClassVar[str] = "custom"

    seed_type: NodeType
    sampler: str
    """``"package.module:Class"``: see ``sampling.custom.UserSampler``."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    with_edge: bool = False
    """Return the ids of sampled edges."""

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        return (InputColumn(SEED, "I64", self.seed_type),)

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        return FrameSchema.around_seeds(
            schema,
            columns,
            seed_type=self.seed_type,
            num_hops=1,
            edge_types=list(schema.edges),
            with_edge=self.with_edge,
            distinct_edges=False,
        )

    def open(self, context: SamplerContext) -> PlanSampler:
        return CustomSampler(context, self.seed_type, import_sampler(self.sampler), self.arguments)

    def check_here(self) -> None:
        _check_takes(import_sampler(self.sampler), self.sampler, self.arguments)

    def to_json(self) -> dict[str, Any]:
        return {
            "seed_type": self.seed_type,
            "sampler": self.sampler,
            "arguments": dict(self.arguments),
            "with_edge": self.with_edge,
        }

    @classmethod
    def from_json(cls, fields: PlanFields) -> CustomPlan:
        sampler = check_sampler_name("a custom sampler", fields.text("sampler"))
        if fields.allowed_samplers is not None and sampler not in fields.allowed_samplers:
            raise ValueError(
                f"the sampler {sampler[:200]} is not allowed here: start the server with --allow-sampler "
                f"{sampler[:200]}"
            )
        arguments = fields.take("arguments")
        if not isinstance(arguments, dict):
            raise ValueError("arguments of a custom sampler are an object")
        return cls(
            seed_type=fields.node_type("seed_type"),
            sampler=sampler,
            arguments=_checked_arguments(arguments),
            with_edge=fields.flag("with_edge"),
        )


def _checked_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(dict(arguments), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"arguments of a custom sampler are plain values, as JSON has them: {error}"
        ) from None
    if len(text) > _MAX_ARGUMENTS:
        raise ValueError(
            f"arguments of a custom sampler take {len(text)} bytes as JSON, at most {_MAX_ARGUMENTS}"
        )
    if json.loads(text) != arguments:
        raise ValueError(
            "arguments of a custom sampler change when JSON carries them: use lists and text keys"
        )
    return dict(arguments)


def import_sampler(sampler: str) -> Any:
    """Return the class. ``ValueError`` says why it cannot be imported."""
    module, _, name = sampler.partition(":")
    if module == "__main__":
        raise ValueError(
            f"the sampler {sampler} lies in the script: move it to a module, as workers do not import scripts"
        )
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ValueError(
            f"the sampler {sampler} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(found, "sample", None)):
        raise ValueError(f"{sampler} is no sampler: it has no method sample(batch)")
    return found


def _check_takes(found: Any, sampler: str, arguments: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where the class does not take the arguments."""
    try:
        signature = inspect.signature(found)
    except ValueError:
        return  # Some classes that are not written in Python have none.
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        raise ValueError(f"the sampler {sampler} does not take these arguments: {error}") from None
