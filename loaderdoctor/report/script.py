"""What was run, for whoever writes the advice into it or runs it again."""

from __future__ import annotations

import hashlib

from msgspec import Struct

from loaderdoctor.instrument.wire.records import ScriptRecord
from loaderdoctor.secrets import masked


class Script(Struct, frozen=True, kw_only=True):
    """How it was started, and which of the user's files it read."""

    given: str | None  # the path that was typed; None: with -m
    module: str | None
    args: tuple[str, ...]  # values that look like secrets are `***`
    cwd: str
    n_ranks: int
    sources: dict[str, str]  # `text_hash` of each, by path
    launched: bool = False  # by torch's launcher
    n_added_args: int = 0  # the first of `args`, which the user did not type: a recipe's


def script_of(record: ScriptRecord | None) -> Script | None:
    """As the report holds it: hashes in place of the files' text."""
    if record is None or not record.sources:
        return None
    return Script(
        given=record.given,
        module=record.module,
        args=masked(record.args),
        n_added_args=record.n_added_args,
        cwd=record.cwd,
        n_ranks=record.n_ranks,
        launched=record.launched,
        sources={path: text_hash(text) for path, text in record.sources.items()},
    )


def text_hash(text: str) -> str:
    """sha256 of a file's text with line feeds as line ends."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
