"""Embeddings of nodes in files: one row per node, in shards, over any number of ranks, resumable."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.embedding_files import SHARD_FORMATS, EmbeddingFolder, EmbeddingRun
from gigl_loader.loaders.inputs import SeedNodes
from gigl_loader.loaders.seeds_by_type import SeedsByType
from gigl_loader.loaders.state import state_at
from gigl_loader.options import flag, whole_number
from gigl_loader.sampling.request import SEED

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from gigl_loader.arrays import Int64Array
    from gigl_loader.loaders.embedding_files import Ids, Rows

logger = logging.getLogger(__name__)

_DTYPES = {torch.float32: "float32", torch.float16: "float16"}
_Uninitialized = torch.nn.parameter.UninitializedParameter | torch.nn.parameter.UninitializedBuffer
_DIGITS = 16  # Of the digest of a graph: enough to tell graphs apart, short enough for a message.


@torch.no_grad()
def write_embeddings(
    loader: BaseDistLoader,
    model: Callable[..., Any],
    path: str | os.PathLike[str],
    *,
    format: Literal["parquet", "npy"] = "parquet",
    dtype: torch.dtype = torch.float32,
    original_ids: bool = False,
    rows_per_shard: int = 100_000,
    progress_bar: bool | None = None,
) -> int:
    """Write one row for each node of the loader's input to the directory ``path``. Return how many.

    The rows are those of one epoch of the loader, each node once; where the input names it twice, that of its
    first entry. Under a process group every rank calls this and writes the rows of its own share; it returns
    the number of these. Ranks need not keep step: a rank returns when its own files are there.

    **After a crash**, SIGKILL and power cuts included, the same call goes on behind the last complete shard,
    by any number of ranks, and ends with the same rows as if nothing had happened. Where all are there,
    nothing is sampled. Another input, graph, model or other options are refused.

    ``loader``
        A ``DistNeighborLoader``, or another loader whose input is nodes: ``input_nodes=None`` for all of a
        graph. Not with ``drop_last``, ``seed_weights`` or ``in_order=False``. ``shuffle`` only changes the
        order of the rows. An epoch that is under way begins again.
    ``model``
        A ``torch.nn.Module`` on the loader's device. It is called as ``model(batch.x, batch.edge_index)``,
        for ``HeteroData`` as ``model(batch.x_dict, batch.edge_index_dict)``, and returns a row for each node
        of the batch, [N, D] floats (or a dict of these by node type). Meanwhile it is in ``eval()`` mode. A
        ``DistributedDataParallel`` is called without its collectives.

        Or any callable of the batch, which returns [B, D], rows of the seeds in the order of
        ``batch.input_id``, or [N, D], rows of all nodes of the seed type, of which ``batch.seed_index`` are
        taken. Where the input names a node twice, only [B, D] will do. A method of a module counts as its
        module for ``eval()`` and for the comparison of weights; of any other callable, both are the caller's
        care.
    ``format``
        ``"parquet"``: ``embeddings-*.parquet`` with the columns ``id``, int64, and ``embedding``, a
        fixed-size list of ``dtype``. ``"npy"``: pairs of ``ids-*.npy``, int64 [K], and
        ``embeddings-*.npy``, [K, D].
    ``dtype``
        ``torch.float32`` or ``torch.float16``, to which rows are converted.
    ``original_ids``
        Write the ids by which the tables of the graph named the nodes, as ``dataset.original_ids`` has
        them: strings where these are texts, which only Parquet takes.
    ``rows_per_shard``
        Rows per file, rounded down to whole batches. So many are held in memory, and repeated after a crash.
    ``progress_bar``
        Show one, on rank 0. By default, where standard error is a terminal.

    ``ValueError`` and ``TypeError`` before anything is sampled: for arguments, and for a directory that holds
    something else, the output of another run, or that of another process. ``OSError`` where it cannot be
    written; after the first batch, where the rows will not fit the disk. Errors of loader and model pass
    through, and the same call goes on after them.
    """
    _check_loader(loader)
    loader._follow_group()  # A process group may have appeared since the loader was built.
    options = _Options.read(
        loader, model, format=format, dtype=dtype, original_ids=original_ids, rows_per_shard=rows_per_shard
    )
    with _evaluating(_module_of(model)), _opened(Path(path), loader, options) as (folder, run):
        if run.start < run.schedule.num_steps:
            loader.load_state_dict(run.state)
            _Work(loader, model, folder, options, run).run(shown=progress_bar)
        if not folder.complete:
            folder.finish()
        loader.set_epoch(run.state["epoch"] + 1)
        logger.info("%s: %d rows in %d shards of this rank", path, folder.num_rows, len(folder.shards))
        return folder.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the rows and their files are made with."""

    format: str
    dtype: torch.dtype
    are_texts: bool
    """Of the ids that are written."""
    batches_per_shard: int
    described: dict[str, Any]
    """As plain values, for the manifest: equal for runs whose files are equal."""

    @classmethod
    def read(
        cls,
        loader: BaseDistLoader,
        model: Any,
        *,
        format: str,
        dtype: torch.dtype,
        original_ids: bool,
        rows_per_shard: int,
    ) -> _Options:
        if not callable(model):
            raise TypeError(f"model must be a torch.nn.Module or a callable, got {model!r}")
        if format not in SHARD_FORMATS:
            raise ValueError(f"format must be 'parquet' or 'npy', got {format!r}")
        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.float16, got {dtype!r}")
        rows = whole_number("rows_per_shard", rows_per_shard, minimum=1)
        has_texts = loader.dataset.schema.nodes[_seed_type(loader)].text_ids
        are_texts = flag("original_ids", original_ids) and has_texts
        if are_texts and format == "npy":
            raise ValueError("original_ids are texts here, which .npy does not take: use format='parquet'")
        batches_per_shard = max(rows // loader.batch_size, 1)
        values = (
            loader._options.dequantize_to if loader.dataset.schema.has_quantized_columns else torch.float32
        )
        return cls(
            format=format,
            dtype=dtype,
            are_texts=are_texts,
            batches_per_shard=batches_per_shard,
            described={
                **loader.state_dict()["made_with"],
                "graph": loader.dataset.graph_digest[:_DIGITS],
                "draw specification": loader.state_dict()["draws"],
                "format": format,
                "dtype": _DTYPES[dtype],
                "original_ids": original_ids,
                "batches per shard": batches_per_shard,
                "digest of the model": _digest(_module_of(model)),
                **({} if values == torch.float32 else {"dequantize_to": str(values)}),
            },
        )


class _Work:
    """Batches of one rank, turned into shards."""

    def __init__(
        self,
        loader: BaseDistLoader,
        model: Callable[..., Any],
        folder: EmbeddingFolder,
        options: _Options,
        run: EmbeddingRun,
    ) -> None:
        self._loader, self._folder, self._options, self._run = loader, folder, options, run
        self._embed = _Embedder(loader, model, run.are_written)
        self._num_batches = run.uneven(run.schedule.shard.rank, run.schedule.shard.world_size).num_batches
        """Without the one that repeats a seed so that ranks have equally many."""
        self._done = min(run.first + len(folder.shards) * options.batches_per_shard, self._num_batches)

    def run(self, *, shown: bool | None) -> None:
        """Write the shards that are not there."""
        ids: list[Int64Array] = []
        rows: list[Rows] = []
        has_space = False
        with _progress(
            self._num_batches, self._done, shown=shown, rank=self._loader.topology.rank
        ) as advance:
            for number, batch in enumerate(self._loader, self._run.start):
                if number >= self._num_batches or self._done >= self._num_batches:
                    break
                if number < self._done:
                    continue  # Another rank was not as far when all were stopped.
                if (embedded := self._embed(batch)) is not None:
                    converted = _converted(embedded[1], self._options.dtype)
                    if not has_space:
                        self._check_space(converted)
                        has_space = True
                    ids.append(embedded[0])
                    rows.append(converted)
                steps = number + 1 - self._run.first
                if steps % self._options.batches_per_shard == 0 or number + 1 == self._num_batches:
                    if rows:
                        self._folder.add(self._named(np.concatenate(ids)), np.concatenate(rows))
                    else:  # Ranks of an earlier run have written all of it.
                        self._folder.add([], np.empty((0, 0), np.float32))
                    ids, rows = [], []
                advance()

    def _named(self, ids: Int64Array) -> Ids:
        if not self._options.are_texts:
            return ids  # Tables that named nodes by integers gave them these.
        found = self._loader.dataset.original_ids(torch.from_numpy(ids), _seed_type(self._loader))
        return [str(each) for each in found]

    def _check_space(self, rows: Rows) -> None:
        """Raise ``OSError`` where what is to come does not fit the disk."""
        to_come = (self._num_batches - self._done) * self._loader.batch_size
        needed = to_come * (8 + rows.dtype.itemsize * rows.shape[1]) * self._loader.topology.local_world_size
        free = shutil.disk_usage(self._folder.path).free
        if needed > free:
            what = f"the rows to come need {needed:,} bytes, and {free:,} are free"
            raise OSError(errno.ENOSPC, what, str(self._folder.path))


class _Embedder:
    """Rows of the seeds of a batch."""

    def __init__(
        self, loader: BaseDistLoader, model: Callable[..., Any], are_written: npt.NDArray[np.bool_] | None
    ) -> None:
        """``are_written``: by place in the input, whether its row is there already."""
        self._are_written = are_written
        self._model = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        self._homogeneous = loader.dataset.schema.homogeneous
        self._seed_type = _seed_type(loader)
        self._is_first = _first_entries(loader)

    def __call__(self, batch: Any) -> tuple[Int64Array, torch.Tensor] | None:
        """Return node ids [K] and rows [K, D] of the seeds of which this is the first entry.

        Seeds whose rows are written already are left out; ``None`` where that is all of them.
        """
        try:
            seeds = batch if self._homogeneous else batch[self._seed_type]
            node_ids, places, local = seeds.n_id, seeds.input_id, seeds.seed_index
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                "a batch without n_id, input_id and seed_index of its seeds: a transform must keep them"
            ) from error
        kept = None if self._is_first is None else self._is_first[places.cpu().numpy()]
        if self._are_written is not None:
            lacks = ~self._are_written[places.cpu().numpy()]
            kept = lacks if kept is None else kept & lacks
            if not lacks.any():
                return None
        rows = self._rows(batch, local, len(node_ids))
        ids = node_ids[local].cpu().numpy()
        if kept is None:
            return ids, rows
        return ids[kept], rows[torch.from_numpy(kept).to(rows.device)]

    def _rows(self, batch: Any, local: torch.Tensor, num_nodes: int) -> torch.Tensor:
        """Return the rows of the seeds, [B, D]."""
        is_module = isinstance(self._model, torch.nn.Module)
        out = self._called(batch) if is_module else self._model(batch)
        if isinstance(out, Mapping) and self._seed_type in out:
            out = out[self._seed_type]
        of_nodes = isinstance(out, torch.Tensor) and len(out.shape) == 2 and len(out) == num_nodes
        of_seeds = isinstance(out, torch.Tensor) and len(out.shape) == 2 and len(out) == len(local)
        if of_seeds and not is_module:
            found: torch.Tensor = out
        elif of_nodes and (is_module or self._is_first is None):
            found = out[local]
        else:
            raise ValueError(self._mismatch(out, is_module, num_nodes, len(local)))
        if not found.shape[1] or not found.is_floating_point():
            raise ValueError(f"rows of the model must be floats [.., D], got {_shape(out)} of {out.dtype}")
        return found

    def _called(self, batch: Any) -> Any:
        try:
            inputs = (
                (batch.x, batch.edge_index) if self._homogeneous else (batch.x_dict, batch.edge_index_dict)
            )
        except (AttributeError, KeyError):
            inputs = (None, None)
        if inputs[0] is None:
            raise ValueError(
                "a torch.nn.Module is called with the column 'x' of the nodes, which the batch lacks: pass a "
                "callable that takes the batch"
            )
        return self._model(*inputs)

    def _mismatch(self, out: Any, is_module: bool, num_nodes: int, num_seeds: int) -> str:
        if is_module:
            wanted = f"[{num_nodes}, D], a row for each node of the batch (or pass a callable of the batch)"
        elif self._is_first is None:
            wanted = f"[{num_seeds}, D], rows of the seeds, or [{num_nodes}, D], rows of all nodes"
        else:
            wanted = f"[{num_seeds}, D], rows of the seeds, as the input names nodes twice"
        return f"the model returned {_shape(out)}; needed is {wanted}"


def _shape(out: Any) -> str:
    return (
        f"a tensor of shape {list(out.shape)}" if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
    )


def _converted(rows: torch.Tensor, dtype: torch.dtype) -> Rows:
    """Return rows as NumPy has them. ``ValueError`` where a finite number is none in ``dtype``."""
    found = rows.to(dtype)
    if found.dtype != rows.dtype and not torch.equal(found.isfinite(), rows.isfinite()):
        largest = float(rows.abs().nan_to_num(0, 0).max())
        raise ValueError(f"{largest:g} of the model does not fit {_DTYPES[dtype]}")
    return found.cpu().numpy()


def _first_entries(loader: BaseDistLoader) -> npt.NDArray[np.bool_] | None:
    """Return which entries of the input are the first of their node, [N]; ``None`` where all are."""
    positions = loader._seeds.columns[SEED]
    seen = np.zeros(int(positions.max()) + 1, bool)
    seen[positions] = True
    if int(np.count_nonzero(seen)) == len(positions):
        return None
    # Places are numbers of entries here: only masks have others, and a mask has a node once.
    is_first = np.zeros(len(positions), bool)
    is_first[np.unique(positions, return_index=True)[1]] = True
    return is_first


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, BaseDistLoader):
        raise TypeError(f"write_embeddings needs a DistNeighborLoader, not a {type(loader).__name__}")
    if not isinstance(loader._seeds, SeedNodes):
        is_mixed = isinstance(loader._seeds, SeedsByType)
        found = "nodes of several types: build a loader for each" if is_mixed else "links"
        raise ValueError(f"write_embeddings needs a loader of nodes of one type, and the input is {found}")
    wrong = {
        "drop_last=True": loader.drop_last,
        "seed_weights": loader._seed_weights is not None,
        "in_order=False": not loader._options.workers.in_order,
    }
    for option, is_given in wrong.items():
        if is_given:
            raise ValueError(
                f"write_embeddings writes every node once, in one order: build {loader.name} without {option}"
            )


def _seed_type(loader: BaseDistLoader) -> str:
    kind = loader._seeds.kind
    assert isinstance(kind, str)
    return kind


def _module_of(model: Any) -> torch.nn.Module | None:
    """Return the module that a model is, or is a method of."""
    owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


@contextmanager
def _evaluating(module: torch.nn.Module | None) -> Iterator[None]:
    """Put a module and its parts in ``eval()`` mode, and each back where it was."""
    modes = {} if module is None else {part: part.training for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _digest(module: torch.nn.Module | None) -> str | None:
    """Return a digest of a module's parameters and buffers. ``ValueError`` where it has none yet."""
    if module is None:
        return None
    digest = hashlib.blake2b(digest_size=16)
    state = module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module
    for name, value in state.state_dict().items():
        if isinstance(value, _Uninitialized):
            raise ValueError(f"the model's {name} is not initialised: load its weights first")
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _opened(
    path: Path, loader: BaseDistLoader, options: _Options
) -> Iterator[tuple[EmbeddingFolder, EmbeddingRun]]:
    """Lend this rank's part of the directory, begun, and the run that all ranks go on with.

    Ranks that share the input tell each other how far they are: all must begin at the same batch.
    """
    agreement, group = loader._placement.agreement, loader._placement.group
    key = "" if agreement is None or group is None else f"embeddings/{group.turn('embeddings')}"
    try:
        with EmbeddingFolder(
            path,
            rank=loader._placement.shard.rank,
            world_size=loader._placement.shard.world_size,
            shard_format=SHARD_FORMATS[options.format],
        ) as folder:
            _check_same(folder, loader, options)
            if folder.earlier and (seed := folder.earlier[0].state["run_seed"]) != loader.seed:
                loader.load_state_dict({**loader.state_dict(), "run_seed": seed, "batches": 0, "ahead": []})
            run = EmbeddingRun.beside(folder.earlier, loader, options.batches_per_shard)
            done = run.first + len(folder.shards) * options.batches_per_shard
            mine = {
                "state": folder.state,
                "done": run.schedule.num_steps if folder.complete else done,
                "options": options.described,
            }
            told = [mine]
            if group is not None and key:
                told_as, key = key, ""  # What fails from here on, every rank sees by itself.
                group.publish(told_as, json.dumps(mine))
                what = f"call write_embeddings for {path}"
                texts = group.collect(
                    told_as, timeout=loader._placement.options.timeout_s, what=what, check=_check_told
                )
                told = [json.loads(text) for text in texts]
            _go_on(run, told)
            if folder.options is None:
                folder.begin(options.described, state_at(run.state, run.first, run.schedule))
            yield folder, run
    except Exception as error:
        if group is not None and key:
            group.publish(key, json.dumps({"failure": f"{type(error).__name__}: {error}"}))
        raise


def _check_same(folder: EmbeddingFolder, loader: BaseDistLoader, options: _Options) -> None:
    """Raise ``ValueError`` where the directory is of another run."""
    written = [(each.options, each.state) for each in folder.earlier]
    if folder.options is not None and folder.state is not None:
        written.append((folder.options, folder.state))
    for there_options, there_state in written:
        here, there = ({**each, "sharding": "any"} for each in (options.described, there_options))
        if not loader._random_seed:
            here["seed"], there["seed"] = loader.seed, there_state["run_seed"]
        differ = [name for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]
        if differ:
            what = "; ".join(f"{name} is {here.get(name)} here, {there.get(name)} there" for name in differ)
            raise ValueError(f"{folder.path} is of another run: {what}. Pass another path")


def _check_told(told: Mapping[int, str]) -> None:
    """Raise where a rank failed, or where ranks call with different options."""
    first: dict[str, Any] | None = None
    for rank, text in sorted(told.items()):
        said = json.loads(text)
        if "failure" in said:
            raise RuntimeError(f"rank {rank} cannot write embeddings: {said['failure']}")
        if first is None:
            first = said["options"]
        differ = [name for name, value in first.items() if said["options"].get(name) != value]
        if differ:
            raise ValueError(
                f"ranks differ in write_embeddings: {', '.join(differ)} of rank {rank} and rank {min(told)}. "
                "Pass the same model and arguments on every rank"
            )


def _go_on(run: EmbeddingRun, told: list[dict[str, Any]]) -> None:
    """Set state and step at which all ranks begin."""
    states = [each["state"] for each in told if each["state"] is not None]
    # A rank that was killed before its first manifest belongs to the run of the other ranks.
    state = states[0] if states else run.fresh
    runs = {(each["run_seed"], each["epoch"]) for each in states}
    if len(runs) > 1:
        raise ValueError("ranks hold embeddings of different runs: pass another path on all of them")
    run.start = min(*(each["done"] for each in told), run.schedule.num_steps)
    run.state = state_at(state, run.start, run.schedule)


@contextmanager
def _progress(total: int, done: int, *, shown: bool | None, rank: int) -> Iterator[Callable[[], object]]:
    """Yield what counts one batch. ``shown``: ``None`` where standard error is a terminal."""
    from tqdm import tqdm  # type: ignore[import-untyped]  # torch_geometric has it.

    hidden = None if shown is None else not shown
    with tqdm(
        total=total, initial=done, desc="embeddings", unit="batch", disable=True if rank else hidden
    ) as bar:
        yield bar.update
