"""The two middlewares as one: what both must do is tested once, over both and over real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from gatecount.integrations import asgi, wsgi
from integrations.middleware_servers import uvicorn_thread, wsgiref_threads


def query(request: Any) -> str:
    """Return the query of an ASGI scope or a WSGI environ."""
    text: str | bytes = request.get("query_string", request.get("QUERY_STRING"))
    return text.decode() if isinstance(text, bytes) else text


class Face(Protocol):
    """A middleware over an application that answers 200 and counts its calls."""

    calls: int

    def build(self, gate: Any = None, **options: Any) -> Any: ...

    def serve(self, gate: Any = None, **options: Any) -> AbstractContextManager[int]: ...


class AsgiFace:
    def __init__(self) -> None:
        self.calls = 0

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})

    def build(self, gate: Any = None, **options: Any) -> Any:
        return asgi.AdmissionMiddleware(self._app, gate, **options)

    @contextmanager
    def serve(self, gate: Any = None, **options: Any) -> Iterator[int]:
        with uvicorn_thread(self.build(gate, **options), lifespan="off") as port:
            yield port


class WsgiFace:
    def __init__(self) -> None:
        self.calls = 0

    def _app(self, environ: Any, start_response: Any) -> list[bytes]:
        self.calls += 1
        start_response("200 OK", [])
        return [b"served"]

    def build(self, gate: Any = None, **options: Any) -> Any:
        return wsgi.AdmissionMiddleware(self._app, gate, **options)

    @contextmanager
    def serve(self, gate: Any = None, **options: Any) -> Iterator[int]:
        with wsgiref_threads(self.build(gate, **options)) as port:
            yield port


FACES: dict[str, type[Face]] = {"asgi": AsgiFace, "wsgi": WsgiFace}


def http_scope() -> dict[str, Any]:
    """Return the scope of a request, for an ASGI application that is called without a server."""
    return {"type": "http", "method": "GET", "path": "/"}


async def silent() -> Any:
    """Receive: there is no message for an application that should ask for none."""
    raise AssertionError("asked for a message")


async def nothing(_message: Any) -> None:
    """Send: take a message as a server does, at once."""
