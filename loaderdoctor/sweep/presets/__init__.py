"""Published experiments, each as one command: a tuple of presets in plain sight."""

from __future__ import annotations

from loaderdoctor.errors import UsageError
from loaderdoctor.sweep.presets.compute import COMPUTE, LADDER
from loaderdoctor.sweep.presets.loading import (
    LOADER_ONLY,
    PREFETCHERS,
    PREPROCESSING,
    REUSE,
    STORAGE,
    WORKERS_PINNING,
)
from loaderdoctor.sweep.presets.model import Preset
from loaderdoctor.sweep.presets.who_is_faster import WHO_IS_FASTER

PRESETS: tuple[Preset, ...] = (
    WHO_IS_FASTER,
    LADDER,
    WORKERS_PINNING,
    PREFETCHERS,
    STORAGE,
    PREPROCESSING,
    REUSE,
    COMPUTE,
    LOADER_ONLY,
)


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises UsageError that names all of them."""
    for preset in PRESETS:
        if preset.name == name:
            return preset
    names = ", ".join(preset.name for preset in PRESETS)
    raise UsageError(f"no preset {name!r}. There are: {names}.")
