"""Tests, scripts and options that the pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from loaderdoctor.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"(?<![\w/.-])(?:tests|benchmarks)/[\w/-]*\w(?:\.\w+)?")
# A command with what stands before the script: its own options.
TYPED = re.compile(r"loaderdoctor (\w+)((?: +(?!--? |-m )[^\s`#]+)*)")
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


def options_typed(text: str) -> list[tuple[str, str]]:
    """(command, option) of every command line in a page, without what is the script's."""
    return [
        (name, word.partition("=")[0].rstrip(".,;:)"))
        for name, words in TYPED.findall(text)
        for word in re.split(r"\S+\.py\b", words)[0].split()
        if word.startswith("--")
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_a_page_gives_a_command_are_there(page: Path) -> None:
    known = {
        (name, option)
        for name, command in cli.commands.items()
        for parameter in command.get_params(click.Context(command))
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    of_commands = [one for one in options_typed(page.read_text()) if one[0] in cli.commands]
    assert not [one for one in of_commands if one not in known]


def test_options_of_the_script_are_none_of_the_commands() -> None:
    typed = "`loaderdoctor run --tune=exact train.py --lr 1`, loaderdoctor sweep --grid a=1 x.py"
    assert options_typed(typed) == [("run", "--tune"), ("sweep", "--grid")]
    assert options_typed("loaderdoctor diagnose -m pkg.train --lr 0.1") == []
