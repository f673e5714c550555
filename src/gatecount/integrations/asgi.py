"""One exact limit on the requests of an ASGI application, over all processes that serve it.

app = AdmissionMiddleware(app, "api", exempt=("/health",))
app.add_middleware(AdmissionMiddleware, gate="api", exempt=("/health",))    # Starlette, FastAPI
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Unpack

from gatecount.gate import Gate, Permit
from gatecount.integrations._policy import Options, Policy, check_bool
from gatecount.integrations._refusal import Refusal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

TRY_AGAIN_LATER: Final = 1013
"""The close code of a WebSocket that is refused, where its HTTP answer cannot be set."""


class AdmissionMiddleware:
    """An ASGI application of which at most the gate's limit of requests run, over all processes.

    An HTTP request or a WebSocket holds its permit until the application has returned from it, raised or
    been cancelled: after the last byte of a stream, and after Starlette's background tasks unless
    background is False, which gives it back with the last byte. Messages pass unseen in both directions,
    the disconnect too. The rest passes; at lifespan a slot is claimed.

    gate is a Gate, a name, or None for the one that GATECOUNT_GATE names; by name it is opened at the
    first use in each process and takes a slot for this middleware there. See `Options` for the keywords,
    and `_policy` for what becomes of requests that are not admitted. A WebSocket is refused by the same
    HTTP answer, or with 403 by a server that has no such extension. Made before a fork, it works in each
    child. Raises TypeError, ValueError.
    """

    def __init__(
        self,
        app: App,
        gate: Gate | str | None = None,
        *,
        background: bool = True,
        **options: Unpack[Options],
    ) -> None:
        self._app = app
        self._policy = Policy(gate, _describe, **options)
        self._background = check_bool(background, "background")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass one connection to the application, or refuse it."""
        policy, kind = self._policy, scope["type"]
        if kind not in ("http", "websocket") or scope["path"] in policy.exempt:
            if kind == "lifespan":
                policy.prepare()
            await self._app(scope, receive, send)
            return
        admitted = await policy.admit_async(scope) if policy.waits else policy.admit(scope)
        if admitted is None:
            await self._app(scope, receive, send)
        elif isinstance(admitted, Refusal):
            await _refuse(admitted, scope, send)
        else:
            with admitted:
                if not self._background:
                    send = _releasing(admitted, send)
                await self._app(scope, receive, send)


def _releasing(permit: Permit, send: Send) -> Send:
    async def send_and_release(message: Message) -> None:
        await send(message)
        if message["type"] in _BODIES and not message.get("more_body", False):
            permit.release()

    return send_and_release


_BODIES: Final = frozenset(
    {"http.response.body", "http.response.pathsend", "http.response.zerocopysend"}
)


async def _refuse(refusal: Refusal, scope: Message, send: Send) -> None:
    prefix = ""
    if scope["type"] == "websocket":
        prefix = "websocket."
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": refusal.phrase})
            return
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers]
    content = refusal.content(scope.get("method"))
    await send({"type": f"{prefix}http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{prefix}http.response.body", "body": content})


def _describe(scope: Message) -> str:
    return f"{scope.get('method', 'WebSocket')} {scope['path']!r}"
