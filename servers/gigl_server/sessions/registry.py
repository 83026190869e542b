"""Registry of sessions: the producers and channels of each training job, and their leases."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import EVERYTHING
from gigl_loader.sampling.new_nodes import NewNodes
from gigl_loader.sampling.plan import differences
from gigl_loader.sampling.plans import read_plan
from gigl_loader.sampling.request import BatchRequest
from gigl_server.admission import LOCAL, Identity, has_quota
from gigl_server.frames.ring import FrameRing
from gigl_server.sessions.channel import Channel, ChannelOptions, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gigl_loader.arrays import Array
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.rpc.graph_store_pb2 import SampleRequest
    from gigl_loader.rpc.tokens import Grant
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.request import InputColumn
    from gigl_server.admission import Limits, Quota

_CHANNEL_BYTES = 16


def check_key(key: str, limits: Limits) -> None:
    """Raise ``Refusal`` unless a producer may have this key."""
    if not 0 < len(key) <= limits.name_length:
        raise Refusal(
            RefusalKind.INVALID, f"a key has 1 to {limits.name_length} characters, this one {len(key)}"
        )
    _check_printable(key, "key")


def check_graph(digest: str, graph: Graph) -> None:
    """Raise ``Refusal`` unless ``digest`` is that of this graph."""
    ours = graph.manifest.digest
    if digest != ours:
        raise Refusal(
            RefusalKind.CONFLICT,
            f"asked for graph {digest[:12]!r}, this server has {ours[:12]!r}: serve one graph everywhere",
        )


def read_producer_plan(
    text: str, schema: GraphSchema, limits: Limits, allowed_samplers: Collection[str]
) -> BatchPlan:
    """Read the plan of a producer. ``Refusal`` for an invalid plan, or one that does not fit this graph."""
    if len(text) > limits.plan_bytes:
        raise Refusal(RefusalKind.INVALID, f"a plan of {len(text)} characters: at most {limits.plan_bytes}")
    try:
        plan = read_plan(text, schema, allowed_samplers=allowed_samplers)
        plan.sampler.check_here()
        return plan
    except ValueError as error:
        raise Refusal(RefusalKind.INVALID, str(error)) from None


def make_ring(options: ChannelOptions, *, free_bytes: int, memory: Quota, owner: Identity) -> FrameRing:
    """Make the requested ring. ``Refusal`` for invalid sizes, or more than ``free_bytes``."""
    if options.ring_slots * options.ring_slot_bytes > free_bytes:
        raise Refusal(
            RefusalKind.BUSY,
            f"a ring of {options.ring_slots} slots of {options.ring_slot_bytes} bytes: this server has "
            f"{free_bytes} left for rings",
        )
    try:
        return FrameRing(options.ring_slots, options.ring_slot_bytes, memory=memory, owner=owner)
    except ValueError as error:
        raise Refusal(RefusalKind.INVALID, str(error)) from None


def check_channel_options(options: ChannelOptions, limits: Limits) -> None:
    """Raise ``Refusal`` for invalid channel options."""
    check_key(options.key, limits)
    if len(options.name) > limits.name_length:
        raise Refusal(
            RefusalKind.INVALID, f"a name of {len(options.name)} characters: at most {limits.name_length}"
        )
    _check_printable(options.name, "name")
    for name, value, most in (
        ("credit", options.credit, limits.credit),
        ("share", options.share, limits.share),
    ):
        if not 1 <= value <= most:
            raise Refusal(RefusalKind.INVALID, f"{name} {value} does not lie in [1, {most}]")
    if bool(options.ring_slots) != bool(options.ring_slot_bytes):
        raise Refusal(RefusalKind.INVALID, "a ring needs a number of slots and their size")


def check_slot(channel: Channel, slot: int) -> None:
    """Raise ``Refusal`` unless the channel's ring has the slot. 0 means no slot."""
    slots = 0 if channel.ring is None else channel.ring.slots
    if not 0 <= slot <= slots:
        raise Refusal(RefusalKind.INVALID, f"slot {slot} of a ring of {slots}")


def read_request(
    message: SampleRequest,
    inputs: Sequence[InputColumn],
    *,
    schema: GraphSchema,
    limits: Limits,
    interactive: bool = False,
) -> BatchRequest:
    """Return the request for a batch. ``Refusal`` unless its entries fit the plan's ``inputs``.

    Requests of ``interactive`` channels may bring new nodes.
    """
    if max(message.epoch, message.batch, message.fence, message.number) >= 2**63:
        raise Refusal(RefusalKind.INVALID, "epoch, batch, fence and number are below 2**63")
    try:
        request = BatchRequest.read(
            message.epoch,
            message.batch,
            index=message.index,
            inputs=message.inputs,
            columns=inputs,
            number=message.number,
        )
    except ValueError as error:
        raise Refusal(RefusalKind.INVALID, str(error)) from None
    if not 1 <= len(request) <= limits.batch_seeds:
        raise Refusal(
            RefusalKind.INVALID, f"a batch has 1 to {limits.batch_seeds} seeds, this one {len(request)}"
        )
    new = None
    if message.new_nodes:
        if not interactive:
            raise Refusal(RefusalKind.INVALID, "only requests of interactive channels bring new nodes")
        try:
            new = NewNodes.read(message.new_nodes, schema)
        except FormatError as error:
            raise Refusal(RefusalKind.INVALID, str(error)) from None
    try:
        of_types = [
            (column, node_type, request.inputs[column.name][entries])
            for column in inputs
            for node_type, entries in column.entries_by_type(request.inputs)
        ]
    except ValueError as error:
        raise Refusal(RefusalKind.INVALID, str(error)) from None
    for column, node_type, positions in of_types:
        added = 0 if new is None else new.counts[node_type]
        _check_positions(positions, schema.nodes[node_type].count + added, column)
    return request if new is None else replace(request, new=new)


def _check_positions(positions: Array, count: int, column: InputColumn) -> None:
    if not len(positions):
        return
    low, high = int(positions.min()), int(positions.max())
    if low < -int(column.optional) or high >= count:
        raise Refusal(RefusalKind.INVALID, f"{column.name}s {low} to {high} lie outside of {count} nodes")


def _check_printable(text: str, what: str) -> None:
    """Raise ``Refusal`` for control characters, which logs, metrics and terminals would interpret."""
    if not text.isprintable():
        raise Refusal(RefusalKind.INVALID, f"a {what} has no control characters, got {text!r}")


@dataclass(slots=True, eq=False)
class Session:
    """Producers and channels of a job. A session exists while it has any."""

    key: bytes
    owner: Identity
    """Caller that created the first producer. Everything of the job counts for the owner's quotas."""
    producers: dict[str, Producer] = field(default_factory=dict)
    channels: dict[bytes, Channel] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lapse:
    """Expired channels and producers of a job."""

    job: bytes
    channels: list[Channel]
    producers: int


class Sessions:
    """Sessions of all jobs. Every lookup is within one job. Not thread-safe."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        grant_of: Callable[[Identity], Grant] = lambda _: EVERYTHING,
    ) -> None:
        """``grant_of`` returns the quotas of an owner's token."""
        self._limits = limits
        self._grant_of = grant_of
        self._clock = clock
        self._jobs: dict[bytes, Session] = {}
        self._channels: dict[bytes, Channel] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def num_producers(self) -> int:
        return sum(len(job.producers) for job in self._jobs.values())

    @property
    def plans(self) -> set[str]:
        """Texts of the plans of all producers."""
        return {each.plan_text for job in self._jobs.values() for each in job.producers.values()}

    @property
    def channels(self) -> dict[bytes, Channel]:
        """Channels of all jobs, by id."""
        return self._channels

    def renew(self, key: bytes, channels: Iterable[bytes]) -> list[bytes]:
        """Renew the leases of these channels. Return the channels that the job has."""
        job = self._jobs.get(key)
        known = [each for each in channels if job is not None and each in job.channels]
        for each in known:
            self._channels[each].seen = self._clock()
        return known

    def create_producer(self, key: bytes, name: str, plan: BatchPlan, caller: Identity = LOCAL) -> bool:
        """Create a producer. ``False`` if the same one exists; ``Refusal`` for another plan under its name.

        A new job belongs to ``caller``.
        """
        job = self._jobs.get(key)
        there = job.producers.get(name) if job else None
        if there is not None:
            there.seen = self._clock()
            if there.plan != plan:
                differ = differences(there.plan_text, plan.to_json())
                raise Refusal(
                    RefusalKind.CONFLICT,
                    f"a producer {name!r} of other options exists: {differ}; give another worker_key",
                )
            return False
        owner = caller if job is None else job.owner
        if job is None:
            _check(len(self._jobs), self._limits.jobs, "jobs on this server")
            self._check_quota(owner, "jobs", lambda _: 1, self._limits.jobs)
            self._check_token(owner, "jobs", lambda _: 1)
        else:
            _check(len(job.producers), self._limits.producers_per_job, "producers of one job")
        _check(self.num_producers, self._limits.producers, "producers on this server")
        self._check_quota(owner, "producers", lambda each: len(each.producers), self._limits.producers)
        job = job or self._jobs.setdefault(key, Session(key, owner))
        job.producers[name] = Producer(key=name, plan=plan, plan_text=plan.to_json(), seen=self._clock())
        return True

    def check_room(self, key: bytes, options: ChannelOptions) -> None:
        """Raise ``Refusal`` unless the job may open one more channel of the producer."""
        job = self._jobs.get(key)
        producer = None if job is None else job.producers.get(options.key)
        if job is None or producer is None or options.plan_digest not in (b"", producer.digest):
            # For another plan, too: creating the producer tells in which options the plans differ.
            raise Refusal(
                RefusalKind.NOT_FOUND, f"this job has no producer {options.key!r} here: create it again"
            )
        _check(len(job.channels), self._limits.channels_per_job, "channels of one job")
        _check(len(self._channels), self._limits.channels, "channels on this server")
        self._check_quota(job.owner, "channels", lambda each: len(each.channels), self._limits.channels)
        self._check_token(job.owner, "channels", lambda each: len(each.channels))

    def open_channel(self, key: bytes, options: ChannelOptions, ring: FrameRing | None) -> Channel:
        """Open a channel. Raises ``Refusal`` as ``check_room``."""
        self.check_room(key, options)
        job = self._jobs[key]
        channel = Channel(
            id=secrets.token_bytes(_CHANNEL_BYTES),
            job=key,
            name=options.name,
            producer=job.producers[options.key],
            owner=job.owner,
            credit=options.credit,
            share=options.share,
            interactive=options.interactive,
            deferred_features=options.deferred_features,
            ring=ring,
            last_request=self._clock(),
            seen=self._clock(),
        )
        job.channels[channel.id] = self._channels[channel.id] = channel
        channel.producer.channels.add(channel.id)
        return channel

    def channel(self, key: bytes, channel: bytes) -> Channel:
        """Return a channel of a job. ``Refusal`` for an unknown channel, and for one of another job."""
        if not self.renew(key, [channel]):
            raise Refusal(RefusalKind.NOT_FOUND, "this job has no such channel here: open it again")
        return self._channels[channel]

    def close_channel(self, key: bytes, channel: bytes) -> list[Channel]:
        """Remove a channel, and its producer with the last channel. Return the channels to end."""
        job = self._jobs.get(key)
        found = job.channels.get(channel) if job else None
        if job is None or found is None:
            return []
        self._remove(job, found)
        if not found.producer.channels:
            job.producers.pop(found.producer.key, None)
        self._forget_if_empty(job)
        return [found]

    def destroy_producer(self, key: bytes, name: str) -> list[Channel]:
        """Remove a producer and its channels. Return the channels to end."""
        job = self._jobs.get(key)
        producer = job.producers.pop(name, None) if job else None
        if job is None or producer is None:
            return []
        ended = [job.channels[each] for each in producer.channels]
        for channel in ended:
            self._remove(job, channel)
        self._forget_if_empty(job)
        return ended

    def take_expired(self) -> list[Lapse]:
        """Remove channels whose lease is over, and producers that have no channel left."""
        since = self._clock() - self._limits.lease_s
        lapses = [self._expire(job, since) for job in list(self._jobs.values())]
        return [lapse for lapse in lapses if lapse.channels or lapse.producers]

    def owner(self, key: bytes) -> Identity:
        """Return the owner of a job that exists."""
        return self._jobs[key].owner

    def renew_all(self) -> None:
        """Renew the lease of every channel and producer."""
        now = self._clock()
        for job in self._jobs.values():
            for channel in job.channels.values():
                channel.seen = now
            for producer in job.producers.values():
                producer.seen = now

    def _check_quota(self, owner: Identity, what: str, count: Callable[[Session], int], limit: int) -> None:
        own = sum(count(job) for job in self._jobs.values() if job.owner == owner)
        used = sum(map(count, self._jobs.values()))
        if not has_quota(owner, own=own, used=used, limit=limit):
            raise Refusal(
                RefusalKind.BUSY,
                f"{owner} has {own} {what} on this server, and the rest of {limit} is for others: close some",
            )

    def _check_token(self, owner: Identity, what: str, count: Callable[[Session], int]) -> None:
        """Raise ``Refusal`` where all owners of a token have as many as its quota says."""
        most: int | None = getattr(self._grant_of(owner), what)
        if most is None:
            return
        if sum(count(job) for job in self._jobs.values() if job.owner.token == owner.token) >= most:
            raise Refusal(
                RefusalKind.BUSY,
                f"the quota of token {owner.token} is {most} {what} on this server: close some",
            )

    def _expire(self, job: Session, since: float) -> Lapse:
        ended = [channel for channel in job.channels.values() if channel.seen < since]
        for channel in ended:
            self._remove(job, channel)
        idle = [each for each in job.producers.values() if not each.channels and each.seen < since]
        for producer in idle:
            del job.producers[producer.key]
        self._forget_if_empty(job)
        return Lapse(job.key, ended, len(idle))

    def take_jobs(self, of: Callable[[Identity], bool]) -> list[Channel]:
        """Remove the jobs of owners for which ``of`` returns ``True``. Return the channels to end."""
        jobs = [job for job in self._jobs.values() if of(job.owner)]
        return [channel for job in jobs for channel in self._take_out(job)]

    def _take_out(self, job: Session) -> list[Channel]:
        ended = list(job.channels.values())
        for channel in ended:
            self._remove(job, channel)
        del self._jobs[job.key]
        return ended

    def _remove(self, job: Session, channel: Channel) -> None:
        del job.channels[channel.id], self._channels[channel.id]
        channel.producer.channels.discard(channel.id)

    def _forget_if_empty(self, job: Session) -> None:
        if not job.producers and not job.channels:
            del self._jobs[job.key]


def _check(count: int, limit: int, what: str) -> None:
    if count >= limit:
        raise Refusal(RefusalKind.BUSY, f"{limit} {what} are as many as there may be: close some")
