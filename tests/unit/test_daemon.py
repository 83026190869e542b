"""The process around a storage server: what is sent to it is heard."""

from __future__ import annotations

import signal
import threading

from gigl_server.signals import Signals, wait_for_word


def test_a_signal_that_another_thread_is_given_is_heard() -> None:
    """The system may choose any thread, and a wait of the main one is not interrupted by that."""

    def send() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with Signals(end_at_once=print) as signals:
        signals.hold()
        sender = threading.Timer(0.1, send)
        sender.start()
        assert wait_for_word(signals.told) == "SIGTERM"
        sender.join()
