"""Plan of batches that a user's own class samples, and the import of such classes."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from gigl_loader.options import check_sampler_name
from gigl_loader.sampling.custom import CustomSampler
from gigl_loader.sampling.frame_schema import FrameSchema
from gigl_loader.sampling.request import SEED, InputColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.custom import SamplingGraph
    from gigl_loader.sampling.plan import PlanFields, PlanSampler, SamplerArguments, SamplerContext

_MAX_ARGUMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class UserCode:
    """A user's class or function, by name, and its keyword arguments. Checked at birth, imported later."""

    sampler: str
    """``"package.module:name"`` of a class with a method ``sample(batch)``, or of a function."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """As JSON carries them."""

    def __post_init__(self) -> None:
        check_sampler_name("a custom sampler", self.sampler)
        _check_arguments(self.arguments)

    @classmethod
    def named(cls, found: Any) -> UserCode:
        """Return a class or function that processes import by its name. ``ValueError`` where none can."""
        return cls(f"{found.__module__}:{found.__qualname__}")

    def check_here(self) -> None:
        """Raise ``ValueError`` where this process cannot import it, or it does not take the arguments."""
        found = import_sampler(self.sampler)
        try:
            signature = inspect.signature(found)
        except ValueError:
            return  # Some classes that are not written in Python have none.
        try:
            signature.bind(*[None] * (1 if _is_class(found) else 2), **self.arguments)
        except TypeError as error:
            raise ValueError(f"the sampler {self.sampler} does not take these arguments: {error}") from None

    def open(self, graph: SamplingGraph) -> Callable[[Any], Any]:
        """Return the function that samples a batch: ``sample`` of a new object, or the user's function."""
        found = import_sampler(self.sampler)
        if _is_class(found):
            return found(graph, **self.arguments).sample  # type: ignore[no-any-return]
        return partial(found, graph, **self.arguments)

    def to_json(self) -> dict[str, Any]:
        return {"sampler": self.sampler, "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, sampler: object, arguments: object, allowed: Collection[str] | None) -> UserCode:
        """Read the fields of a plan from outside. ``ValueError`` names the rule that is broken.

        ``allowed`` are the names that may be imported; ``None``: any.
        """
        name = check_sampler_name("a custom sampler", sampler)
        if allowed is not None and name not in allowed:
            raise ValueError(
                f"the sampler {name[:200]} is not allowed here: start the server with --allow-sampler "
                f"{name[:200]}"
            )
        if not isinstance(arguments, dict):
            raise ValueError("arguments of a custom sampler are an object")
        return cls(name, arguments)


class CustomSamplerOptions:
    """A user's own sampler: the class, or function, at ``"package.module:Class"`` and its keyword arguments.

    It is imported where batches are sampled: in this process (``num_workers=0``), in sampling
    processes, or on storage servers that were started with ``--allow-sampler package.module:Class``. The page
    ``docs/extend.md`` shows one. Arguments are plain values, as JSON has them.
    """

    __slots__ = ("code",)

    def __init__(self, sampler: str, /, **arguments: Any) -> None:
        """``ValueError`` for what is no such name, or arguments that JSON does not give back equal."""
        self.code = UserCode(sampler, arguments)

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
                f"class {self.code.sampler} takes to CustomSamplerOptions"
            )
        if arguments.replace:
            raise ValueError("replace=True has no meaning for a custom sampler: its class says how it draws")
        return CustomPlan(seed_type=seed_type, code=self.code, with_edge=arguments.with_edge)

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self.code.arguments.items())
        return f"CustomSamplerOptions({self.code.sampler!r}{given})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomPlan:
    """Subgraphs around seed nodes of one type, made by a user's class."""

    kind: ClassVar[str] = "custom"

    seed_type: NodeType
    code: UserCode
    """See ``sampling.custom.UserSampler``."""
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
        return CustomSampler(context, self.seed_type, self.code.open)

    def check_here(self) -> None:
        self.code.check_here()

    def to_json(self) -> dict[str, Any]:
        return {"seed_type": self.seed_type, **self.code.to_json(), "with_edge": self.with_edge}

    @classmethod
    def from_json(cls, fields: PlanFields) -> CustomPlan:
        return cls(
            code=UserCode.from_json(
                fields.text("sampler"), fields.take("arguments"), fields.allowed_samplers
            ),
            seed_type=fields.node_type("seed_type"),
            with_edge=fields.flag("with_edge"),
        )


def _check_arguments(arguments: Mapping[str, Any]) -> None:
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


def import_sampler(sampler: str) -> Any:
    """Return the class or function. ``ValueError`` says why it cannot be imported."""
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
    if not inspect.isfunction(found) and not _is_class(found):
        raise ValueError(f"{sampler} is no sampler: it has no method sample(batch), and is no function")
    return found


def _is_class(found: Any) -> bool:
    return callable(getattr(found, "sample", None))
