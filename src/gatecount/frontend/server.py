"""One server process: the app behind admission, on uvicorn, with connections taken in turn."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from gatecount.frontend.accept import Acceptor, Anybody, LeastLoaded, PublishedSet
from gatecount.frontend.admission import Admission
from gatecount.frontend.apps import load_app
from gatecount.frontend.engine_client import EngineClient
from gatecount.frontend.errors import StartError
from gatecount.frontend.http import build_app
from gatecount.frontend.limited_app import LimitedApp
from gatecount.frontend.metrics import Metrics
from gatecount.frontend.mp_client import MPEngineClient
from gatecount.frontend.orphans import end_with_parent
from gatecount.frontend.rendering import Renderer
from gatecount.frontend.requests import RequestTable
from gatecount.frontend.seat import Seat
from gatecount.frontend.service import CompletionService
from gatecount.frontend.settings import ServeSettings
from gatecount.frontend.warmup import BackgroundWarmup

KEEP_ALIVE: Final = 60
"""Seconds that an idle connection is kept."""
POLL: Final = 0.05
PARENT_FIRST: Final = 2.0
"""Seconds in which the parent sees the engine's own end, and then ends all: that is its line to say."""

_log = logging.getLogger("gatecount.frontend")


def serve(seat: Seat, settings: ServeSettings, log_level: str = "warning") -> None:
    """Serve in this process until SIGTERM, and let running requests end; the manager's target.

    Ends at once if the parent has gone, and with exit code 1 after one line if the engine has. Before it
    is ready, tells the manager in one line what fails.
    """
    end_with_parent()  # the manager's thread, which starts this process, outlives it
    logging.basicConfig(
        level=log_level.upper(), format=f"%(levelname)s server {seat.index}: %(message)s"
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancel)
    client: EngineClient | None = None
    renderer = Renderer()
    try:
        admission = Admission(
            seat.client_config,
            max_num_queued_reqs=settings.max_num_queued_reqs,
            max_num_queued_tokens=settings.max_num_queued_tokens,
        )
        app: ASGIApp
        if settings.app is not None:
            metrics = Metrics(admission, seat.board)
            app = LimitedApp(load_app(settings.app), admission, seat.row, metrics)
        else:
            client = _engine_client(seat, settings, renderer)
            table = RequestTable(admission)
            service = CompletionService(client, renderer, admission, table, seat.row)
            app = build_app(service, Metrics(admission, seat.board, client))
        server = _Server(_config(app, settings, log_level), seat, settings, client)
        server.run(sockets=[])
    except StartError as error:
        seat.failed(str(error))
        sys.exit(1)
    except SystemExit:  # uvicorn's way to say that the app's lifespan has refused to start
        seat.failed("the app's lifespan failed at its start-up")
        raise
    else:
        if server.lost_engine:
            sys.exit(1)
    finally:
        if client is not None:
            client.shutdown()
        renderer.close()


def _is_no_cancel(record: logging.LogRecord) -> bool:
    """Leave out the stack traces of requests that a stop has cancelled: one line tells their number."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _engine_client(seat: Seat, settings: ServeSettings, renderer: Renderer) -> EngineClient:
    # The engine's process was there before this one, and nothing forks any more.
    warmup = BackgroundWarmup(
        renderer.warmup_steps(settings.warmup_time), renderer.executor, [renderer.clear_cache]
    )
    if seat.engine is None:
        return MPEngineClient(settings.engine, warmup=warmup)
    return MPEngineClient(seat.engine, warmup=warmup)


def _config(app: ASGIApp, settings: ServeSettings, log_level: str) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        loop="asyncio",
        log_config=None,
        log_level=log_level,
        access_log=log_level in ("debug", "info"),
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    # Typed as whole seconds, and used as any number of them.
    config.timeout_graceful_shutdown = settings.shutdown_timeout  # type: ignore[assignment]
    return config


class _Server(uvicorn.Server):
    """A uvicorn server that accepts in turn with others, and ends with its parent."""

    def __init__(
        self,
        config: uvicorn.Config,
        seat: Seat,
        settings: ServeSettings,
        client: EngineClient | None,
    ) -> None:
        super().__init__(config)
        self._seat = seat
        self._client = client
        self._accept = settings.accept
        self._engine_deadline = settings.engine.load_time + settings.start_timeout
        self.lost_engine = False
        self._connections = PublishedSet(seat.row)
        self.server_state.connections = self._connections
        # uvicorn raises the signal again when it has stopped, for who was there before: nobody else.
        signal.signal(signal.SIGTERM, self.handle_exit)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Leave new connections to the others at once; the rest follows in the loop."""
        self._connections.close()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app's lifespan; return when engine and warm-up are ready too. Raises StartError."""
        parent = multiprocessing.parent_process()
        if parent is not None:
            # Readable once the parent is gone, however it went: nobody is left to be served.
            asyncio.get_running_loop().add_reader(parent.sentinel, os._exit, 1)
        await super().startup(sockets)
        if self._client is None:
            return
        ready = asyncio.create_task(self._until_ready(self._client))
        while not ready.done() and not self.should_exit:
            await asyncio.wait([ready], timeout=POLL)
        if not ready.cancel():
            ready.result()

    async def _until_ready(self, client: EngineClient) -> None:
        await client.wait_until_ready(self._engine_deadline)
        await client.warmup()

    async def main_loop(self) -> None:
        """Serve until told to stop."""
        seat = self._seat
        assert seat.listener is not None
        in_turn = seat.board.shared and self._accept != "any"
        policy = LeastLoaded(seat.board, seat.index) if in_turn else Anybody()
        acceptor = Acceptor(seat.listener, seat.row, policy, self._connect)
        async with asyncio.TaskGroup() as group:
            accepting = group.create_task(acceptor.run())
            self._connections.open()
            seat.ready()
            await super().main_loop()
            self._connections.close()
            accepting.cancel()
        seat.listener.close()
        if self.lost_engine:
            await self._say_that_the_engine_is_lost()

    async def on_tick(self, counter: int) -> bool:
        """Tell, ten times a second, whether to stop serving."""
        if not self.should_exit and self._client is not None and not self._client.is_alive:
            self.lost_engine = True
        return await super().on_tick(counter) or self.lost_engine

    async def _say_that_the_engine_is_lost(self) -> None:
        until = time.monotonic() + PARENT_FIRST
        while not self.should_exit:
            if time.monotonic() >= until:
                _log.error("lost its connection to the engine")
                return
            await asyncio.sleep(POLL)

    async def _connect(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class
        made: asyncio.Protocol = protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made
