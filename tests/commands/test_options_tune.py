"""`--tune` says `exact` only after an equals sign: what comes next is the script, or its own."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from loaderdoctor.commands.options import TuneCommand


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py", " train.py"),
        ("--tune train.py", "on train.py"),
        ("--tune=exact train.py --tune", "exact train.py --tune"),
        ("--output --tune --tune train.py", "on train.py"),
        ("-m --tune package.train --tune=x", "on package.train --tune=x"),
        ("train.py --tune exact", " train.py --tune exact"),
    ],
)
def test_the_option_never_takes_the_script(words: str, expected: str) -> None:
    @click.command(cls=TuneCommand, context_settings={"allow_interspersed_args": False})
    @click.option("--tune", type=click.Choice(["on", "exact"]))
    @click.option("--output")
    @click.option("-m", "as_module", is_flag=True)
    @click.argument("script")
    @click.argument("args", nargs=-1, type=click.UNPROCESSED)
    def run(tune: str | None, script: str, args: tuple[str, ...], **_: object) -> None:
        click.echo(" ".join([tune or "", script, *args]))

    done = CliRunner().invoke(run, words.split())
    assert done.exit_code == 0, done.output
    assert done.output == f"{expected}\n"
