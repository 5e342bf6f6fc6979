"""docs/axes.md says of every axis whether batches stay the same: what it promises is hashed."""

from __future__ import annotations

import re
from pathlib import Path

from loaderdoctor.settings import AXES, AXES_BY_NAME, Settings
from tests.instrument.axis_cases import SAME_DATA, SAME_LOADING, SAME_ON_DEVICE

PAGE = Path(__file__).parents[2] / "docs" / "axes.md"


def promised() -> dict[str, set[str]]:
    """Axes, `name` or `name=value`, by the first words of the list's entries."""
    section = PAGE.read_text().split("## Which batches stay the same\n")[1].split("\n## ")[0]
    entries = re.findall(r"- \*\*(.+?)\*\*(.+?)(?=\n- |\n\n|\Z)", section, re.S)
    return {words: set(re.findall(r"`([a-z0-9_]+(?:=[a-z]+)?)`", text)) for words, text in entries}


def named(*all_settings: Settings) -> set[str]:
    """How the page speaks of what these set; a value is named where others do otherwise."""
    by_value = {"in_order", "background"}
    return {
        f"{name}={str(value).lower()}" if name in by_value else name
        for settings in all_settings
        for name, value in settings.changed().items()
        if not (AXES_BY_NAME[name].where == "dataset" and AXES_BY_NAME[name].is_idle(value))
    }


def test_the_axes_said_to_keep_every_byte_are_those_whose_batches_are_hashed() -> None:
    said = promised()
    assert said["The same on the host"] == named(*SAME_DATA, *SAME_LOADING)
    on_device = named(*SAME_ON_DEVICE) - said["The same on the host"]
    assert said["The same on the device"] == on_device


def test_every_axis_of_the_dataset_is_a_row_of_the_table() -> None:
    """A table ends at its first blank line: what stands behind one is shown as text."""
    table = PAGE.read_text().split("| axis | values | what happens |\n")[1].split("\n\n")[0]
    rows = set(re.findall(r"^\| `([a-z0-9_]+)` ", table, re.M))
    assert rows == {axis.name for axis in AXES if axis.where == "dataset"}


def test_every_axis_is_spoken_of() -> None:
    spoken_of = {name.split("=")[0] for names in promised().values() for name in names}
    numerics = {axis.name for axis in AXES if axis.numerics}
    assert spoken_of | numerics == {axis.name for axis in AXES}
