"""The application behind each server's gate, in both interfaces: what it runs, a bystander counts.

/work takes a moment; anything else takes as long as the client takes to send the body that it announced.
The answer is the worker's pid.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from servers.bystander import ENVIRONMENT, Bystander

_bystander = Bystander(os.environ[ENVIRONMENT])
_MOMENT = 0.003


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    held = environ["PATH_INFO"] != "/work"
    _bystander.enter(held)
    try:
        if held:
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        else:
            time.sleep(_MOMENT)
    finally:
        _bystander.leave(held)
    body = str(os.getpid()).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for done in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{done}.complete"})
        return
    held = scope["path"] != "/work"
    _bystander.enter(held)
    try:
        while held and (await receive()).get("more_body"):
            pass
        if not held:
            await asyncio.sleep(_MOMENT)
    finally:
        _bystander.leave(held)
    body = str(os.getpid()).encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
