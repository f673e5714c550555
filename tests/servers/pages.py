"""The pages about servers: their files and commands, to be run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "servers"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"[#;] ([\w.]+\.(?:py|ini|toml))")


class Page:
    """A page of docs/servers."""

    def __init__(self, server: str) -> None:
        text = (PAGES / f"{server}.md").read_text(encoding="utf-8")
        self.files: dict[str, str] = {}
        """The blocks that begin with a comment that is a file's name."""
        self.commands: list[str] = []
        """What follows a `$ ` in the console's blocks."""
        self.snippets: list[str] = []
        """Blocks of Python that are no file."""
        for language, block in _BLOCK.findall(text):
            if language == "console":
                self.commands += re.findall(r"^\$ (.*)$", block, re.MULTILINE)
            elif named := _FILE_NAME.fullmatch(block.partition("\n")[0]):
                assert named[1] not in self.files, f"{named[1]} is there twice"
                self.files[named[1]] = block
            elif language == "python":
                self.snippets.append(block)

    def command(self, beginning: str) -> list[str]:
        """Return the words of the one command that begins so."""
        found = [command for command in self.commands if command.startswith(beginning)]
        assert len(found) == 1, found
        return shlex.split(found[0])

    def write(self, directory: Path) -> None:
        """Put the files there."""
        for name, content in self.files.items():
            (directory / name).write_text(content, encoding="utf-8")
