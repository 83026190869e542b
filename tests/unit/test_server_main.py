"""The process around a storage server: what is sent to it is heard."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

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


HANGING = """
import ctypes
from gigl_server.signals import Signals
mutex = ctypes.create_string_buffer(64)  # As PTHREAD_MUTEX_INITIALIZER makes it.
library = ctypes.CDLL(None)
library.pthread_mutex_lock(mutex)
with Signals(end_at_once=print) as signals:
    signals.hold()
    print("up", flush=True)
    library.pthread_mutex_lock(mutex)
"""


@pytest.mark.slow
def test_a_process_whose_main_thread_hangs_in_a_library_ends_all_the_same() -> None:
    with subprocess.Popen([sys.executable, "-uc", HANGING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "up\n"
            time.sleep(2)  # Until it waits for the mutex: before, Python would run the handler.
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert said == "SIGTERM: the main thread hangs: ending at once\n"
