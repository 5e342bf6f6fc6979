"""The settings a trial can change: the axes, which combinations torch accepts, the code for each.

A `Settings` names only what a trial changes: `None` means "as the user's own loop has it". In
JSON the keys are these field names and unset is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Literal

from loaderdoctor.errors import UsageError

Background = Literal["off", "host", "device"]
StartMethod = Literal["fork", "spawn", "forkserver"]
Value = bool | int | str | None

DEFAULT_PREFETCH_FACTOR = 2  # torch's own, for num_workers > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One combination of loader and transfer settings; hashable, usable as a key."""

    num_workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    in_order: bool | None = None
    start_method: StartMethod | None = None
    background: Background | None = None
    non_blocking: bool | None = None
    side_stream: bool | None = None
    resident: bool | None = None

    def as_dict(self) -> dict[str, Value]:
        """Every axis by name, unset as None: the form of `settings` in report.json."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def changed(self) -> dict[str, Value]:
        """Only the axes this combination sets."""
        return {name: value for name, value in self.as_dict().items() if value is not None}

    def over(self, base: Settings) -> Settings:
        """These settings where set, else those of `base`."""
        return Settings(**{**base.changed(), **self.changed()})  # type: ignore[arg-type]

    def label(self) -> str:
        """Short text for a table row, e.g. `4 workers, prefetch 2, pinned`; `as is` if empty."""
        parts = [AXES_BY_NAME[name].label(value) for name, value in self.changed().items()]
        return ", ".join(part for part in parts if part) or "as is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One setting: its values' type, when it means anything, and the code line that sets it."""

    name: str
    kind: Literal["int", "bool", "choice"]
    choices: tuple[str, ...] = ()
    needs_accelerator: bool = False
    needs_workers: bool = False
    where: Literal["DataLoader", "transfer", "loop"] = "DataLoader"
    on_text: str = ""
    off_text: str = ""

    def label(self, value: Value) -> str:
        """How a value reads in a table; empty for what goes without saying."""
        if self.name == "num_workers":
            return f"{value} worker" if value == 1 else f"{value} workers"
        if self.kind == "int":
            return f"{self.on_text} {value}"
        if self.kind == "bool":
            return self.on_text if value else self.off_text
        return "" if value == "off" else f"{self.on_text} {value}".strip()

    def parse(self, text: str) -> Value:
        """The value a user typed for this axis. Raises UsageError that names what is accepted."""
        word = text.strip().lower()
        if self.kind == "bool":
            if word in ("true", "1", "yes", "on"):
                return True
            if word in ("false", "0", "no", "off"):
                return False
            raise UsageError(f"{self.name}={text}: not a yes/no value; write true or false.")
        if self.kind == "int":
            if word.isdigit():
                return int(word)
            raise UsageError(f"{self.name}={text}: not a whole number of 0 or more.")
        if word in self.choices:
            return word
        raise UsageError(f"{self.name}={text}: choose from {', '.join(self.choices)}.")


AXES: tuple[Axis, ...] = (
    Axis(name="num_workers", kind="int"),
    Axis(name="prefetch_factor", kind="int", needs_workers=True, on_text="prefetch"),
    Axis(name="persistent_workers", kind="bool", needs_workers=True, on_text="persistent"),
    Axis(name="pin_memory", kind="bool", needs_accelerator=True, on_text="pinned"),
    Axis(name="in_order", kind="bool", needs_workers=True, off_text="any order"),
    Axis(
        name="start_method",
        kind="choice",
        choices=("fork", "spawn", "forkserver"),
        needs_workers=True,
    ),
    Axis(
        name="background",
        kind="choice",
        choices=("off", "host", "device"),
        where="loop",
        on_text="background",
    ),
    Axis(
        name="non_blocking",
        kind="bool",
        needs_accelerator=True,
        where="transfer",
        on_text="non_blocking",
    ),
    Axis(
        name="side_stream",
        kind="bool",
        needs_accelerator=True,
        where="loop",
        on_text="side stream",
    ),
    Axis(name="resident", kind="bool", needs_accelerator=True, where="loop", on_text="resident"),
)
AXES_BY_NAME: Mapping[str, Axis] = {axis.name: axis for axis in AXES}


def invalid_reason(settings: Settings, *, has_accelerator: bool) -> str | None:
    """Why this combination can't run or means nothing here; None where it is valid.

    `settings` must be complete as far as `num_workers` goes: it decides the worker-only axes.
    """
    workers = settings.num_workers or 0
    for name, value in settings.changed().items():
        axis = AXES_BY_NAME[name]
        idle = value is False or value == "off"
        if axis.needs_workers and not workers and not idle and name != "in_order":
            return f"{name} needs num_workers > 0"
        if axis.needs_accelerator and not has_accelerator and not idle:
            return f"{name} needs an accelerator"
    if settings.background == "device" and not has_accelerator:
        return "background=device needs an accelerator"
    if settings.prefetch_factor is not None and settings.prefetch_factor < 1:
        return "prefetch_factor must be at least 1"
    if settings.resident and (workers or settings.background not in (None, "off")):
        return "resident leaves nothing for workers or a background thread to do"
    if settings.resident and (settings.side_stream or settings.pin_memory or settings.non_blocking):
        return "resident copies nothing, so pinning, non_blocking and side_stream mean nothing"
    if settings.side_stream and settings.background == "device":
        return "side_stream and background=device both move the batch; use one"
    return None


def combinations(
    values: Mapping[str, tuple[Value, ...]], *, has_accelerator: bool
) -> Iterator[Settings]:
    """Every valid combination of the given values per axis, each once, in the order given."""
    seen: set[Settings] = set()
    for chosen in product(*values.values()):
        raw = dict(zip(values, chosen, strict=True))
        if not raw.get("num_workers"):
            # At 0 workers these axes mean nothing: fold such rows into one.
            raw = {k: v for k, v in raw.items() if not AXES_BY_NAME[k].needs_workers}
        settings = Settings(**raw)  # type: ignore[arg-type]
        if settings in seen or invalid_reason(settings, has_accelerator=has_accelerator):
            continue
        seen.add(settings)
        yield settings
