"""A sampling process whose peers get slow, then die, in one round of its second batch."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

from gigl_loader.errors import StorageUnavailable
from gigl_loader.hosts import peers
from gigl_loader.sampling.partitioned import PartitionedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.sampling.plan import BatchSampler
    from gigl_loader.workers.config import WorkerConfig

DYING_ROUND = "GIGL_TEST_DYING_ROUND"
"""Counted over all batches. The one before takes almost as long as a peer is asked."""


def open_samplers(config: WorkerConfig) -> Sequence[BatchSampler]:
    """Return samplers of two hops: three rounds a batch, with that of the columns."""
    dying, rounds = int(os.environ[DYING_ROUND]), 0

    def slowed(ask: Any) -> Any:
        def asked(store: PartitionedStore, what: Any) -> Any:
            nonlocal rounds
            rounds += 1
            if rounds == dying - 1:
                time.sleep(0.9 * config.timeout_s)
            if rounds >= dying:
                time.sleep(config.timeout_s)
                raise StorageUnavailable("host 0 did not answer")
            return ask(store, what)

        return asked

    for name in ("sample", "gather"):
        mock.patch.object(PartitionedStore, name, slowed(getattr(PartitionedStore, name))).start()
    return peers.open_samplers(config)
