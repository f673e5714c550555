"""Find an ASGI application by its name, and say in one line why not."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from gatecount.frontend.errors import StartError


def working_directory() -> str:
    """Return the working directory. Raises StartError, with one line, if it cannot be used."""
    try:
        return os.getcwd()
    except OSError as error:
        raise StartError(f"the working directory cannot be used: {error.strerror}") from error


def load_app(path: str) -> Any:
    """Import `package.module:attribute` and return it; the attribute may have dots.

    Modules of the working directory are found first. Raises StartError with one line, whatever goes
    wrong in there.
    """
    module_name, _, attribute = path.partition(":")
    here = working_directory()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    # An application that ends the process while it is imported has failed like any other.
    except BaseException as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise StartError(f"cannot import {path!r}: {reason}") from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise StartError(f"cannot import {path!r}: {module_name} has no {attribute}") from None
    if not callable(found):
        kind = type(found).__name__
        raise StartError(f"cannot serve {path!r}: it is of type {kind}, no ASGI application")
    return found
