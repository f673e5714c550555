"""The index of the documentation: it leads to every page, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servers.pages import PAGES

DOCS = PAGES.parent


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).is_file(), target


def test_the_index_has_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#:]+\.md)", index)) - {"../README.md"}
    assert linked == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
