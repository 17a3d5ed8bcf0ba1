"""Sockets to listen on: bound before anything is announced, with a clear line when taken."""

from __future__ import annotations

import errno
import socket
from typing import Final

from tasks.errors import SettingsError

BACKLOG: Final = 4096
GONE_S: Final = 60
"""A peer that acknowledges nothing for so long is gone, and its stream ends (where the system can
tell: Linux); by itself TCP would try for a quarter of an hour."""
_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises SettingsError with a line that names the address and the way out.
    """
    where = f"{host}:{port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise SettingsError(f"SLOWCALL_HOST: {host}: {error.strerror}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if _USER_TIMEOUT is not None:
            listener.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, GONE_S * 1000)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} is in use; stop what listens there or choose another (--port N)"
        else:
            reason = f"cannot listen on {where}: {error.strerror}"
        raise SettingsError(f"SLOWCALL_PORT: {reason}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The address to give to people: of a socket on all interfaces, the one on this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
