"""One listening socket for several processes: none of them binds by itself."""

from __future__ import annotations

import socket
from typing import Final

from gatecount.errors import GatecountError

BACKLOG: Final = 2048


class CannotListen(GatecountError):
    """No socket could listen there; `reason` is the system's."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}, port {port}: {reason}")
        self.reason = reason


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on host and port, 0 for a free one. Raises CannotListen."""
    listener = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # With its protocol named (create_server leaves it 0): asyncio sets TCP_NODELAY only on
        # sockets that say they are TCP, and accepted ones take after this one. Without it many an
        # answer is 40 ms late.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        reason = error.strerror if isinstance(error, OSError) else None
        raise CannotListen(host, port, reason or str(error)) from error
    return listener


def url(listener: socket.socket) -> str:
    """Return the URL under which a listening socket is reached, without a slash at its end."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
