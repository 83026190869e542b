"""The process around a storage server: what is sent to it is heard."""

from __future__ import annotations

import signal
import threading
from queue import SimpleQueue

from gigl_server import daemon


def test_a_signal_that_another_thread_is_given_is_heard() -> None:
    """The system may choose any thread, and a wait of the main one is not interrupted by that."""
    told: SimpleQueue[str] = SimpleQueue()

    def send() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with daemon._signals(told):
        sender = threading.Timer(0.1, send)
        sender.start()
        assert daemon._heard(told) == "SIGTERM"
        sender.join()
