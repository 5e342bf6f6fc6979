"""One option of a script's command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# `-j 9`, `data.num_workers=9`, a word at a place of its own, `WORKERS=9 python train.py`.
Kind = Literal["flag", "key", "place", "environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a value is given on the command line."""

    kind: Kind
    names: tuple[str, ...] = ()  # every spelling, as `-j` and `--workers`
    switch: bool = False  # given or not, without a value
    negated: str | None = None  # the spelling that switches it off: `--no-pin-memory`
    off: bool = False  # giving the switch sets False
    before_command: bool = False  # belongs to the main parser of one with subcommands
    place: int = 0  # of sys.argv


def clicked(flags: Sequence[str], *, is_flag: bool) -> Option | None:
    """Of click and typer, whose switches are spelled `--pin/--no-pin`."""
    on: list[str] = []
    negated = None
    for flag in flags:
        first, slash, second = flag.partition("/")
        on.append(first.strip())
        if slash:
            negated = second.strip()
    if not on:
        return None
    switch = is_flag or negated is not None
    return Option(kind="flag", names=tuple(on), switch=switch, negated=negated)


def dest_of(flags: Sequence[str]) -> str:
    """The name that argparse and click give an option: the first long one's, else the first's."""
    long = next((f for f in flags if f.startswith("--")), flags[0] if flags else "")
    return long.lstrip("-").replace("-", "_")
