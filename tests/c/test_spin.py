"""A wait looks for a permit before it sleeps: seen where time stands still and a sleep is the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from c.build import COMPILER, ROOT
from support import DEADLINE, python

pytestmark = [
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no compiler {COMPILER!r}"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no futex"),
]

SLEPT = 7

WAITS = """
import sys, threading
from pathlib import Path
from gatecount import Gate

def ticks(thread):
    fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])

gate = Gate.create(limits={"requests": 1}, slots=1, mode=sys.argv[1])
gate.acquire()
thread = threading.Thread(target=gate.acquire)
thread.start()
while not gate.statistics().caps["requests"].waiting:
    pass
before = ticks(thread)
while ticks(thread) < before + 3:
    pass  # it looks
gate.release()
thread.join()
assert gate.held() == 1
"""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("frozen") / "frozen.so"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"]
    command = [COMPILER, *strict, str(ROOT / "tests" / "c" / "frozen.c"), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True, timeout=120)
    return library


@pytest.mark.parametrize("mode", ["hard", "approximate"])
def test_a_permit_that_comes_soon_is_not_slept_for(frozen: Path, mode: str) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(frozen)}
    done = subprocess.run(python(WAITS, mode), env=environment, timeout=DEADLINE, check=False)
    assert done.returncode == 0, "it slept" if done.returncode == SLEPT else "it failed"
