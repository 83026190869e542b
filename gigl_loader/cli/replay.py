"""``gigl-loader replay``: check the ledger of a run, and make batches of it again."""

from __future__ import annotations

import json as json_module
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gigl_loader.cli.console import say
from gigl_loader.cli.errors import importing
from gigl_loader.cli.options import CallerOptions, grouped

if TYPE_CHECKING:
    from gigl_loader.loaders.replay import Recording
    from gigl_loader.rpc.credentials import Caller


@grouped
def replay(
    ledgers: Annotated[
        list[str], typer.Argument(help="Ledgers of one run, of all ranks whose batches are wanted.")
    ],
    *,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            "--batch", "-b", min=0, help="Number in its epoch; repeat it for several. Default: all."
        ),
    ] = None,
    epoch: Annotated[int | None, typer.Option(min=0, help="Needed where several epochs have it.")] = None,
    graph: Annotated[str | None, typer.Option(help="Directory of the graph, partitioned in any way.")] = None,
    store: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a storage server, or several with commas.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Hash of a line that was noted elsewhere: it must still be there.")
    ] = None,
    allow_sampler: Annotated[
        list[str] | None,
        typer.Option(help="package.module:Class that the ledger may have imported from here."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a batch.")] = 300.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    credentials: CallerOptions,
) -> None:
    """Check every line of a ledger; with --graph or --store, make its batches again and compare.

    Exit code 1: a batch is not what it was, and its line and arrays are named.
    Exit code 2: a line was changed, removed or moved, or a file of the graph
    is damaged.
    """
    with importing():
        from gigl_loader.loaders.replay import Recording

    if graph is not None and store:
        raise ValueError("--graph and --store are two places of one graph: give one of them")
    if graph is None and not store and (batch or epoch is not None):
        raise ValueError("a batch is made of a graph: add --graph DIRECTORY or --store HOST:PORT")
    makes = graph is not None or bool(store)
    recordings = [
        Recording.read(
            path,
            lambda of_epoch, number: (
                makes and (not batch or number in batch) and (epoch is None or of_epoch == epoch)
            ),
            head=head if len(ledgers) == 1 else None,
        )
        for path in ledgers
    ]
    if head is not None and len(ledgers) > 1:
        raise ValueError("--head is of one ledger: give one")
    _check_chosen(recordings, batch or [], epoch, makes=makes)
    results: list[dict[str, Any]] = []
    here, damage, same = None, None, True
    if makes:
        with ExitStack() as stack:
            dataset = open_whole(graph, store or [], credentials.caller(), timeout, stack)
            here = dataset.graph_digest
            for recording in recordings:
                results += _compare(recording, dataset, set(allow_sampler or ()), timeout)
            same = not any(each["differs"] for each in results)
            damage = None if same or graph is None else _damage(dataset)
    if json:
        document = {"ledgers": [each.to_json() for each in recordings], "batches": results}
        print(json_module.dumps({**document, "graph": here, "damage": damage, "same": same}))
    else:
        _tell(recordings, results, here)
        if not same and graph is not None:
            say(f"the graph is damaged: {damage}" if damage else "the graph is whole: it has other contents")
    if not same:
        raise typer.Exit(1)


def _damage(dataset: Any) -> str | None:
    """Return the first fault of a graph, every byte of which is read. ``None``: there is none."""
    from gigl_loader.errors import FormatError

    try:
        dataset._graph.verify()
    except FormatError as error:
        return str(error)
    return None


def _check_chosen(recordings: list[Recording], batch: list[int], epoch: int | None, *, makes: bool) -> None:
    """Raise ``ValueError`` where a batch is not in the ledgers, or in several epochs."""
    if not makes:
        return
    names = ", ".join(str(each.path) for each in recordings)
    for number in batch:
        epochs = {each.epoch for found in recordings for each in found.chosen if each.batch == number}
        if not epochs:
            of = "" if epoch is None else f" of epoch {epoch}"
            ranks = max(found.run.get("world_size") or 1 for found in recordings)
            hint = f"; there were {ranks} ranks: name the ledgers of all" if len(recordings) < ranks else ""
            raise ValueError(f"no batch {number}{of} in {names}{hint}")
        if len(epochs) > 1:
            listed = ", ".join(map(str, sorted(epochs)))
            raise ValueError(f"batch {number} is in epochs {listed}: choose with --epoch")


def open_whole(graph: str | None, store: list[str], caller: Caller, timeout: float, stack: ExitStack) -> Any:
    """Open a graph with all of its partitions: a directory, or that of storage servers."""
    if graph is not None:
        from gigl_loader.dataset import DistDataset

        dataset = stack.enter_context(DistDataset.open(graph))
        if not dataset._is_on_this_host:
            raise ValueError(f"{graph} has only some partitions of its graph: all are needed, or --store")
        return dataset
    from gigl_client import RemoteDistDataset
    from gigl_server.logs import quiet_grpc

    quiet_grpc()
    return stack.enter_context(
        RemoteDistDataset.connect(",".join(store), credentials=caller, timeout=timeout)
    )


def _compare(recording: Recording, dataset: Any, allowed: set[str], timeout: float) -> list[dict[str, Any]]:
    from gigl_loader.loaders.replay import Replay

    found = []
    with Replay(recording, dataset, allowed_samplers=allowed, timeout_s=timeout) as made_again:
        for each in recording.chosen:
            differs = made_again.compare(each)
            found.append(
                {
                    "ledger": str(recording.path),
                    "line": each.line,
                    "epoch": each.epoch,
                    "batch": each.batch,
                    "served_by": each.fields["served_by"],
                    "frame": each.fields["frame"],
                    "differs": list(differs),
                }
            )
    return found


def _tell(recordings: list[Recording], results: list[dict[str, Any]], here: str | None) -> None:
    from gigl_loader.loaders.replay import described

    for each in recordings:
        told = f"{each.path}: {each.lines:,} lines, {each.batches:,} batches of {len(each.epochs):,} epochs"
        say(f"{told}, every line is sealed; run {each.run['run']}, graph {each.run.get('graph')}")
        say(f"head {each.head}")
        if each.incomplete_bytes:
            say(f"a line of {each.incomplete_bytes} bytes at its end is incomplete: a crash cut it off")
    same = 0
    for result in results:
        if result["differs"]:
            where = f"{result['ledger']}, line {result['line']}"
            what = f"batch {result['batch']} of epoch {result['epoch']}, of {result['served_by']}"
            say(f"{where}: {what}, differs: {described(result['differs'])}")
        else:
            same += 1
    if results:
        say(f"{same:,} of {len(results):,} batches are what they were, byte for byte")
    if here is not None and any(each.run.get("graph") != here for each in recordings):
        say(f"the graph here has digest {here}: other partitions, or other contents")
