"""Any ASGI application behind the cap: what `gatecount serve package.module:app` serves."""

from __future__ import annotations

import uuid

from starlette.types import ASGIApp, Receive, Scope, Send

from gatecount.frontend.admission import Admission
from gatecount.frontend.board import Row
from gatecount.frontend.errors import AdmissionRefused
from gatecount.frontend.http import health, metrics_page, refusal_response
from gatecount.frontend.metrics import Metrics

TRY_AGAIN_LATER = 1013
"""The close code of a WebSocket that is refused, where its HTTP answer cannot be set."""


class LimitedApp:
    """An ASGI application of which at most the limit of requests run, over all servers.

    An HTTP request or a WebSocket holds one place until the application has returned from it, which is
    after the last byte of a stream and after Starlette's background tasks. The application sees every
    message as it comes, the disconnect too, and what it then does is up to it. Lifespan passes.

    GET /health and /metrics are answered here and never refused; the application does not see them.
    """

    def __init__(self, app: ASGIApp, admission: Admission, row: Row, metrics: Metrics) -> None:
        self._app = app
        self._admission = admission
        self._row = row
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one connection to the application, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        page = _OWN_PAGES.get(scope["path"]) if scope.get("method") in ("GET", "HEAD") else None
        if page is not None:
            await (await page(self._metrics))(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        try:
            self._admission.check_admission(1, request_id)
        except AdmissionRefused as refusal:
            self._row.count_refused(refusal.cap)
            await _refuse(refusal, scope, receive, send)
            return
        try:
            self._row.count_admitted()
            await self._app(scope, receive, send)
        finally:
            self._admission.release(request_id)


_OWN_PAGES = {"/health": health, "/metrics": metrics_page}


async def _refuse(refusal: AdmissionRefused, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": "The server is busy."})
        return
    # Of a WebSocket, Starlette's response sends the answer to its opening request.
    await refusal_response(refusal)(scope, receive, send)
