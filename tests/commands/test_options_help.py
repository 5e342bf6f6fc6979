"""Help for someone in a hurry: options in groups, and examples that the parser takes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from loaderdoctor.cli import cli
from loaderdoctor.commands.options import EXAMPLES, completion_line


def shown(name: str) -> str:
    command = cli.commands[name]
    return command.get_help(click.Context(command, info_name=name, parent=click.Context(cli)))


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_has_an_example_that_its_parser_takes(name: str) -> None:
    text = shown(name)
    assert EXAMPLES[name]
    for what, line in EXAMPLES[name]:
        assert what in text
        assert line in text  # whole, not wrapped
        program, command, *words = shlex.split(line)
        assert program == "loaderdoctor"
        cli.commands[command].make_context(command, words)


def test_options_are_grouped_and_none_is_lost() -> None:
    text = shown("diagnose")
    order = [text.index(f"\n{title}:") for title in ("Options", "The report", "torch.profiler")]
    assert order == sorted(order)
    for param in cli.commands["diagnose"].params:
        if isinstance(param, click.Option) and not param.hidden:
            assert param.opts[0] in text


def test_commands_are_listed_by_what_they_are_for() -> None:
    text = cli.get_help(click.Context(cli, info_name="loaderdoctor"))
    assert text.index("Measure:") < text.index("diagnose ") < text.index("Look at runs:")
    assert all(f"\n  {name} " in text for name in cli.commands)
    assert "_LOADERDOCTOR_COMPLETE=" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_that_help_names_is_there(shell: str) -> None:
    assert f"_LOADERDOCTOR_COMPLETE={shell}_source" in completion_line(shell)
    done = subprocess.run(
        [sys.executable, "-c", "from loaderdoctor.cli import main; main()"],
        env={
            **os.environ,
            "_LOADERDOCTOR_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": "loaderdoctor diag",
            "COMP_CWORD": "1" if shell != "fish" else "diag",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "diagnose" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [("pr", "prove"), ("diagnose --bud", "--budget"), ("sweep --search a", "auto")],
)
def test_bash_completes_what_was_begun(words: str, completed: str, tmp_path: Path) -> None:
    command = tmp_path / "loaderdoctor"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m loaderdoctor "$@"\n')
    command.chmod(0o755)
    script = (
        f"{completion_line('bash')}; COMP_WORDS=(loaderdoctor {words}); "
        f"COMP_CWORD={len(words.split())}; _loaderdoctor_completion loaderdoctor; "
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [completed]
