"""Faults of listening sockets: one of another process is shut, as if its acceptor had died."""

from __future__ import annotations

import ctypes
import os
import socket

import psutil

_PIDFD_GETFD = 438


def shut_listener(pid: int, port: int) -> None:
    """Shut the socket by which a process of ours listens at ``port``. New connections are refused."""
    connections = psutil.Process(pid).net_connections("tcp")
    fds = [each.fd for each in connections if each.status == psutil.CONN_LISTEN and each.laddr.port == port]
    assert fds, f"process {pid} does not listen at port {port}"
    pidfd = os.pidfd_open(pid)
    try:
        for fd in fds:
            mine = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, fd, 0)
            assert mine >= 0, os.strerror(ctypes.get_errno())
            with socket.socket(fileno=mine) as listener:
                listener.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(pidfd)
