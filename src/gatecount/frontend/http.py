"""The HTTP face: completions in the shape of OpenAI's API, refusals, health and metrics."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gatecount.frontend.errors import AdmissionRefused, EngineDead
from gatecount.frontend.metrics import CONTENT_TYPE, Metrics
from gatecount.frontend.rendering import RenderError
from gatecount.frontend.service import CompletionService, SampleOutput

MAX_BODY: Final = 8 << 20
"""Bytes of one request: a list of a million token ids."""
LARGE_BODY: Final = 64 << 10
"""Bytes beyond which a body is parsed where prompts are rendered: the loop serves others meanwhile."""
MAX_SAMPLES: Final = 128
DEFAULT_TOKENS: Final = 16
MAX_TOKENS: Final = 1_000_000
IN_A_ROW: Final = 4
"""Events of a stream that are sent without a turn of the loop, if that many are there."""
RETRY_AFTER: Final = (1, 5)
"""Seconds, both included, between which refused clients are spread."""


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error in the shape that clients of OpenAI-like servers know."""
    kind = HTTPStatus(status).phrase
    error = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": error}, status, headers)


def refusal_response(refusal: AdmissionRefused) -> JSONResponse:
    """Return 503, and when to come again: not all clients at the same instant."""
    return error_response(503, str(refusal), {"retry-after": str(random.randint(*RETRY_AFTER))})


async def health(metrics: Metrics) -> Response:
    """Return whether requests can be served: 200, or 503 if the engine is dead or does not answer."""
    trouble = await metrics.trouble()
    return JSONResponse({"status": "ok"}) if trouble is None else error_response(503, trouble)


async def metrics_page(metrics: Metrics) -> Response:
    """Return all metrics, for Prometheus."""
    return Response(await metrics.render(), media_type=CONTENT_TYPE)


def build_app(service: CompletionService, metrics: Metrics, *, model: str = "reference") -> Starlette:
    """Return the reference application. GET /health and /metrics ask no cap, so none refuses them."""

    async def get_health(_request: Request) -> Response:
        return await health(metrics)

    async def get_metrics(_request: Request) -> Response:
        return await metrics_page(metrics)

    return Starlette(
        routes=[
            Route("/v1/completions", Completions(service, model), methods=["POST"]),
            Route("/health", get_health),
            Route("/metrics", get_metrics),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
    )


_JSON_KINDS: Final = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a client asks for."""

    prompt: object
    """As it came; the renderer judges it."""
    max_tokens: int
    n: int
    stream: bool

    @classmethod
    def parse(cls, body: bytes) -> CompletionRequest:
        """Return what a JSON body asks for; what is not known here is ignored. Raises ValueError."""
        try:
            given = json.loads(body)
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"the body is not JSON: {error}") from None
        except UnicodeDecodeError:
            raise ValueError("the body is not JSON: it is not UTF-8") from None
        except ValueError:  # the one thing that is JSON and still cannot be read
            raise ValueError("the body has an integer of too many digits") from None
        if not isinstance(given, dict):
            raise ValueError(f"the body must be a JSON object, not {_JSON_KINDS[type(given)]}")
        stream = given.get("stream")
        if stream is not None and not isinstance(stream, bool):
            raise ValueError(f"stream must be true or false, not {stream!r:.40}")
        return cls(
            prompt=given.get("prompt"),
            max_tokens=_integer(given, "max_tokens", DEFAULT_TOKENS, MAX_TOKENS),
            n=_integer(given, "n", 1, MAX_SAMPLES),
            stream=bool(stream),
        )


class Completions:
    """POST /v1/completions, an ASGI application."""

    def __init__(self, service: CompletionService, model: str) -> None:
        self._service = service
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and give its places back as soon as its client has gone.

        Where there is no room it is refused before its body is read. The server (uvicorn) then reads
        on and drops what still comes: closing at once would reset a client that is still sending,
        and it might never see the answer.
        """
        try:
            self._service.look()
        except AdmissionRefused as refusal:
            await refusal_response(refusal)(scope, receive, send)
            return
        try:
            body = await _body(Request(scope, receive))
        except ClientDisconnect:
            return
        await _while_connected(receive, self._answer(body, scope, receive, send))

    async def _asked(self, body: bytes) -> CompletionRequest:
        """Return what the body asks for, if there can ever be room for it. Raises ValueError."""
        if len(body) > LARGE_BODY:
            asked = await self._service.run_aside(CompletionRequest.parse, body)
        else:
            asked = CompletionRequest.parse(body)
        limit = self._service.max_num_queued_reqs
        if limit is not None and asked.n > limit:  # never of 0: that was refused at the first look
            raise ValueError(f"n = {asked.n} is more than max_num_queued_reqs = {limit}")
        return asked

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = await self._asked(body)
        except ValueError as error:
            await error_response(400, str(error))(scope, receive, send)
            return
        answer = _Answer(self._model)
        outputs = self._service.generate(
            asked.prompt, max_tokens=asked.max_tokens, n=asked.n, request_id=answer.request_id
        )
        response: Response
        try:
            async with aclosing(outputs):
                if asked.stream:
                    await _stream(answer, outputs, send)
                    return
                response = JSONResponse(await _collect(answer, outputs, asked.n))
        except AdmissionRefused as refusal:
            response = refusal_response(refusal)
        except RenderError as error:
            response = error_response(400, str(error))
        except EngineDead as error:
            response = error_response(500, str(error))
        await response(scope, receive, send)


class _Answer:
    """The frame around the choices of one answer."""

    def __init__(self, model: str) -> None:
        self.request_id = f"cmpl-{uuid.uuid4().hex}"
        self._model = model
        self._created = int(time.time())

    def body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


async def _collect(
    answer: _Answer, outputs: AsyncGenerator[SampleOutput, None], n: int
) -> dict[str, Any]:
    choices = [_choice(index, "", None) for index in range(n)]
    async for output in outputs:
        choice = choices[output.index]
        choice["text"] += output.token or ""
        choice["finish_reason"] = output.finish_reason
    return answer.body(choices)


async def _stream(answer: _Answer, outputs: AsyncGenerator[SampleOutput, None], send: Send) -> None:
    """Send each token as an event. What goes wrong before the first output is raised; after it, sent."""
    output = await anext(outputs)
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    told = 0
    try:
        while True:
            if output.token is not None or output.finish_reason is not None:
                choice = _choice(output.index, output.token or "", output.finish_reason)
                await send(_part(_event(json.dumps(answer.body([choice])).encode())))
                told += 1
                if told % IN_A_ROW == 0:
                    # Neither what is queued already nor a send that finds room waits for anything: let
                    # the loop turn, for other requests, and to see whether this one's client has gone.
                    await asyncio.sleep(0)
            output = await anext(outputs)
    except StopAsyncIteration:
        last = _event(b"[DONE]")
    except EngineDead as error:
        last = _event(bytes(error_response(500, str(error)).body))
    await send(_part(last, more=False))


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _integer(given: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{name} must be an integer from 1 to {most:,}, not {value!r:.40}")
    return value


async def _body(request: Request) -> bytes:
    too_large = HTTPException(413, f"the body may have {MAX_BODY:,} bytes at most")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_BODY:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, but cancel it as soon as the client has gone."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
    if not task.cancelled():
        task.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _http_error(_request: Request, error: Exception) -> Response:
    """Answer what Starlette refuses (no such path or method) and what is too large in the same shape."""
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, error.detail, error.headers)


async def _internal_error(_request: Request, _error: Exception) -> Response:
    return error_response(500, "Internal server error.")
