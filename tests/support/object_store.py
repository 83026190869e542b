"""An S3 server on this machine, in a process of its own: moto's, over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_SERVE = """
import logging, sys, threading
logging.disable(logging.CRITICAL)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def object_store(bucket: str) -> Iterator[Mapping[str, str]]:
    """Serve an empty bucket. Lends the environment in which ``s3://bucket`` is there."""
    child = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        address = child.stdout.readline().strip()
        environment = {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{address}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        request = urllib.request.Request(f"http://{address}/{bucket}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield environment
    finally:
        child.stdin.close()
        child.wait(30)
        child.stdout.close()
