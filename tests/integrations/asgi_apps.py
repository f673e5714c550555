"""ASGI applications for the middleware's tests, and the client of their WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.websockets import WebSocketDisconnect
from websockets.sync.client import ClientConnection, connect

from gatecount.integrations.asgi import AdmissionMiddleware
from integrations.middleware_servers import (
    HOST,
    uvicorn_thread,
)
from support import DEADLINE

START = {"type": "http.response.start", "status": 200, "headers": []}


@contextlib.contextmanager
def starlette(gate: Any, endpoint: Any, **options: Any) -> Iterator[int]:
    """Serve one endpoint at every path, behind the middleware."""
    app = Starlette(routes=[Route("/{path:path}", endpoint, methods=["GET", "POST"])])
    app.add_middleware(AdmissionMiddleware, gate=gate, **options)
    with uvicorn_thread(app, log_level="critical") as port:
        yield port


def until(event: threading.Event) -> Awaitable[bool]:
    return asyncio.to_thread(event.wait, DEADLINE)


async def echo(websocket: Any) -> None:
    await websocket.accept()
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await websocket.send_text(await websocket.receive_text())


def web_socket(port: int, path: str = "/") -> ClientConnection:
    return connect(f"ws://{HOST}:{port}{path}", open_timeout=DEADLINE, proxy=None)
