"""Published experiments, each as one command: a tuple of presets in plain sight."""

from __future__ import annotations

from loaderdoctor.errors import UsageError
from loaderdoctor.sweep.presets.compute import COMPUTE
from loaderdoctor.sweep.presets.ladder import LADDER
from loaderdoctor.sweep.presets.loader_only import LOADER_ONLY
from loaderdoctor.sweep.presets.model import Preset
from loaderdoctor.sweep.presets.prefetchers import PREFETCHERS
from loaderdoctor.sweep.presets.preprocessing import PREPROCESSING
from loaderdoctor.sweep.presets.reuse import REUSE
from loaderdoctor.sweep.presets.storage import STORAGE
from loaderdoctor.sweep.presets.who_is_faster import WHO_IS_FASTER
from loaderdoctor.sweep.presets.workers_pinning import WORKERS_PINNING

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
