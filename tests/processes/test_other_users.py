"""Gates of another user: refused by default, shared where the creator says so."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from gatecount import Gate
from support import Crew, Remote, path_of

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


class Stranger:
    """What a process of another user may do with a gate of ours."""

    def __init__(self) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        self.gate: Gate | None = None

    def open(self, name: str) -> None:
        self.gate = Gate.open(name)

    def create(self, name: str, exist_ok: bool) -> None:
        self.gate = Gate.create(name, limits={"requests": 3}, slots=2, exist_ok=exist_ok)

    def remove(self, name: str) -> None:
        Gate.remove(name)

    def gate_call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.gate, method)(*arguments)


def test_a_gate_is_closed_to_other_users_unless_its_permissions_say_so(gate_name: str) -> None:
    with Gate.create(gate_name, limits={"requests": 3}, slots=2) as gate, Crew("fork") as crew:
        stranger = Remote(crew, Stranger)
        for call in (("open", gate_name), ("remove", gate_name), ("create", gate_name, True)):
            with pytest.raises(PermissionError) as caught:
                stranger.call(*call)
            assert caught.value.errno == errno.EACCES
            assert caught.value.filename == str(path_of(gate_name))
        assert gate.try_acquire(3)
        assert path_of(gate_name).exists()


def test_a_gate_that_others_may_write_is_one_for_all(gate_name: str) -> None:
    with (
        Gate.create(gate_name, limits={"requests": 3}, slots=2, permissions=0o666) as gate,
        Crew("fork") as crew,
    ):
        stranger = Remote(crew, Stranger)
        stranger.call("open", gate_name)
        assert stranger.call("gate_call", "try_acquire", 2)
        assert not gate.try_acquire(2)
        assert gate.try_acquire(1)
        assert stranger.call("gate_call", "reclaim") == 0
        assert gate.reclaim() == 0
        stranger.kill()
        assert gate.reclaim() == 1
        assert gate.try_acquire(2)


def test_another_user_cannot_remove_a_gate_that_it_may_use(gate_name: str) -> None:
    """The directory is sticky: only who made a file may remove it."""
    with (
        Gate.create(gate_name, limits={"requests": 3}, slots=2, permissions=0o666),
        Crew("fork") as crew,
    ):
        stranger = Remote(crew, Stranger)
        with pytest.raises(PermissionError) as caught:
            stranger.call("remove", gate_name)
        assert caught.value.filename == str(path_of(gate_name))
        assert path_of(gate_name).exists()


def test_what_another_user_holds_comes_back_when_it_dies(gate_name: str) -> None:
    with Crew("fork") as crew:
        stranger = Remote(crew, Stranger)
        stranger.call("create", gate_name, False)
        assert stranger.call("gate_call", "try_acquire", 3)
        with Gate.open(gate_name) as gate:
            assert not gate.try_acquire()
            stranger.kill()
            assert gate.reclaim() == 1
            assert gate.try_acquire(3)
