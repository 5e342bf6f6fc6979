"""Numbers of the command line, refused in words of what they are."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import click


class Seconds(click.FloatRange):
    """A time from one second on; `nan` and `inf`, which FloatRange lets pass, are none."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        known = math.nan
        with suppress(TypeError, ValueError):
            known = float(value)
        if not math.isfinite(known):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        seconds: float = super().convert(known, param, ctx)
        return seconds


class Count(click.IntRange):
    """A whole number; said so, where IntRange says `not a valid integer range`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            int(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number
