"""One exact limit on the requests of a WSGI application, over all processes and threads that serve it.

application = AdmissionMiddleware(application, "api", exempt=("/health",))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from gatecount.gate import Gate, Permit
from gatecount.integrations._policy import Options, Policy
from gatecount.integrations._refusal import Refusal

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


_CHUNK: Final = 65_536
"""Bytes of a file that are sent at a time."""


class AdmissionMiddleware:
    """A WSGI application of which at most the gate's limit of requests run, over all processes.

    A request holds its permit until the server closes the application's iterable, after the last byte or
    when the client has gone, or until the application raises. An iterable that a server drops unclosed
    gives it back when it is collected, with a ResourceWarning.

    gate is a Gate, a name, or None for the one that GATECOUNT_GATE names; by name it is opened at the
    first request of each process and takes a slot for this middleware there. See `Options` for the
    keywords, and `_policy` for what becomes of requests that are not admitted. Safe from any thread;
    made before a fork, it works in each child. A request that waits (timeout=) blocks its thread, under
    gevent and eventlet the whole worker. Raises TypeError, ValueError.
    """

    def __init__(
        self, app: WSGIApplication, gate: Gate | str | None = None, **options: Unpack[Options]
    ) -> None:
        self._app = app
        self._policy = Policy(gate, _describe, **options)
        # As environ has them: the bytes of the path, each as one character.
        self._exempt = {path.encode().decode("latin-1") for path in self._policy.exempt}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Pass one request to the application, or refuse it."""
        if self._exempt and _path(environ) in self._exempt:
            return self._app(environ, start_response)
        admitted = self._policy.admit(environ)
        if admitted is None:
            return self._app(environ, start_response)
        if isinstance(admitted, Refusal):
            start_response(f"{admitted.status} {admitted.phrase}", list(admitted.headers))
            return [admitted.content(environ.get("REQUEST_METHOD"))]
        try:
            return _held(admitted, self._app(environ, start_response), environ)
        except BaseException:
            admitted.release()
            raise


class _Held:
    """The application's iterable, and a close that releases too.

    A server iterates the application's own: no chunk passes through here.
    """

    def __init__(self, body: Iterable[bytes], close: Callable[[], None]) -> None:
        self._body = body
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)


class _HeldSized(_Held):
    """The same where the number of parts is known: of a single one, some servers tell the length."""

    def __len__(self) -> int:
        return len(self._body)  # type: ignore[arg-type]


def _held(permit: Permit, body: Iterable[bytes], environ: WSGIEnvironment) -> Iterable[bytes]:
    close = _closing(permit, getattr(body, "close", None))
    wrapper = environ.get("wsgi.file_wrapper")
    if isinstance(wrapper, type) and isinstance(body, wrapper):
        # A server sends the file of its own wrapper unread, if nothing is wrapped around that.
        try:
            body.close = close  # type: ignore[attr-defined]
        except AttributeError:  # it takes none
            pass
        else:
            return body
    elif callable(wrapper) and not isinstance(wrapper, type) and hasattr(body, "read"):
        # The wrapper is a function (uWSGI's) that returns the file, and that iterates by lines.
        body = iter(partial(body.read, _CHUNK), b"")
    return (_HeldSized if hasattr(body, "__len__") else _Held)(body, close)


def _closing(permit: Permit, close: Callable[[], None] | None) -> Callable[[], None]:
    def close_and_release() -> None:
        with permit:
            if close is not None:
                close()

    return close_and_release


def _path(environ: WSGIEnvironment) -> str:
    return str(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))


def _describe(environ: WSGIEnvironment) -> str:
    return f"{environ.get('REQUEST_METHOD', '?')} {_path(environ)!r}"
