"""Tests and scripts that the pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"(?<![\w/.-])(?:tests|benchmarks)/[\w/-]*\w(?:\.\w+)?")
EXAMPLES = frozenset({"tests/a/b/test_name.py"})  # architecture.md: where a module's tests are


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_and_scripts_that_a_page_names_are_there(page: Path) -> None:
    named = set(NAMED.findall(page.read_text())) - EXAMPLES
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_some_are_named() -> None:
    assert NAMED.findall(
        "`pytest tests/docs/test_x.py`: (benchmarks/job.py), traces/tests/a.py"
    ) == [
        "tests/docs/test_x.py",
        "benchmarks/job.py",
    ]
