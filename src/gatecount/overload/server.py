"""One server process: uvicorn on a shared socket, and a handler that asks before it works."""

import asyncio
import json
import multiprocessing
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from multiprocessing.connection import Connection
from typing import Any, Final

import uvicorn

from gatecount.overload.admission import Admission
from gatecount.overload.witness import Witness

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ACCEPT_REST: Final = 0.005
"""Seconds; about what as many servers as there may be take to accept one connection each."""

DONE: Final = json.dumps({"status": "done"}).encode()
FULL: Final = json.dumps(
    {
        "error": {
            "message": "The servers are busy, try again later.",
            "type": "Service Unavailable",
            "param": None,
            "code": 503,
        }
    }
).encode()


class Handler:
    """An ASGI application that works for `service_time` seconds on each request it admits.

    The others are answered 503, in the shape that clients of OpenAI-like servers know.
    """

    def __init__(self, index: int, admission: Admission, witness: Witness, service_time: float) -> None:
        self._index = index
        self._admission = admission
        self._witness = witness
        self._service_time = service_time

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, whatever its path."""
        if scope["type"] != "http":
            raise ValueError(f"only http is served here, not {scope['type']!r}")
        if not self._admission.try_acquire():
            await _answer(send, 503, FULL, (b"retry-after", b"1"))
            return
        try:
            await self._work()
        finally:
            self._admission.release()
        await _answer(send, 200, DONE)

    async def _work(self) -> None:
        # Counted after the permit is granted and until before it is given back, so never more than
        # the gate has granted: if the witness shows more than the limit, the gate let it through.
        self._witness.enter(self._index)
        try:
            await asyncio.sleep(self._service_time)
        finally:
            self._witness.leave(self._index)


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = str(len(body)).encode()
    fixed = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})


class _Server(uvicorn.Server):
    """A uvicorn server that tells when it serves, accepts fairly, and ends with its parent."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, ready: Connection) -> None:
        super().__init__(config)
        self._listener = listener
        self._ready = ready

    async def main_loop(self) -> None:
        """Serve until told to stop."""
        parent = multiprocessing.parent_process()
        if parent is not None:
            # Readable once the parent is gone, however it went: nobody is left to be served.
            asyncio.get_running_loop().add_reader(parent.sentinel, os._exit, 1)
        with self._listener:
            async with asyncio.TaskGroup() as group:
                acceptor = group.create_task(self._accept())
                self._ready.send_bytes(b"ready")
                self._ready.close()
                await super().main_loop()
                acceptor.cancel()

    async def _accept(self) -> None:
        """Accept connections one by one, with a rest after each.

        The kernel wakes every process that waits for a connection, always in the same order, and
        where there are fewer cores than processes the last one hardly ever finds any left. The rest
        lets the others have theirs.
        """
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            await loop.connect_accepted_socket(self._protocol, connection)
            await asyncio.sleep(ACCEPT_REST)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def serve(
    ready: Connection,
    index: int,
    listener: socket.socket,
    admission: Admission,
    witness: Witness,
    service_time: float,
) -> None:
    """Serve on `listener` as server `index` until SIGTERM, which lets running requests end."""
    config = uvicorn.Config(
        Handler(index, admission, witness, service_time),
        loop="asyncio",
        lifespan="off",
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    _Server(config, listener, ready).run(sockets=[])
