"""Published experiments, each as one command: a tuple of presets in plain sight.

Here too is the first of them, `who-is-faster`: 11 combinations x three portions of the dataset x
three repeats. Each is run a second time without sampling the process tree's memory, to show what
sampling costs. `background` of the published matrix also moves the batch: `device` here.
"""

from __future__ import annotations

from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.sweep.presets.compute import COMPUTE, LADDER
from loaderdoctor.sweep.presets.loading import (
    LOADER_ONLY,
    PREFETCHERS,
    PREPROCESSING,
    REUSE,
    STORAGE,
    WORKERS_PINNING,
)
from loaderdoctor.sweep.presets.model import (
    Claim,
    Figures,
    Judged,
    Preset,
    all_hold,
    faster,
    grows,
    mean_change,
    slower,
    unchanged,
)
from loaderdoctor.tryout import Row

PORTIONS = (0.1, 0.4, 0.7)
CONTROL = ", host memory not sampled"
BASELINE = "10"

# (pin_memory, non_blocking, num_workers, prefetch_factor, background); row 11 is resident.
MATRIX: dict[str, tuple[bool, bool, int, int | None, bool]] = {
    "1": (True, False, 0, None, False),
    "2": (True, True, 0, None, False),
    "3": (True, True, 8, 8, False),
    "4": (True, True, 8, 2, False),
    "5": (True, True, 4, 8, False),
    "6": (True, True, 4, 2, False),
    "7": (True, True, 0, None, True),
    "8": (True, False, 0, None, True),
    "9": (False, False, 0, None, True),
    "10": (False, False, 0, None, False),
    "11": (False, False, 0, None, False),
}
RESIDENT = "11"


def group(portion: float, *, control: bool = False) -> str:
    """`10 %`, and `10 %, host memory not sampled` for the control group."""
    return f"{100 * portion:.0f} %" + (CONTROL if control else "")


MAIN = tuple(group(portion) for portion in PORTIONS)


def rows(observed: Observed) -> tuple[Row, ...]:
    return tuple(
        Row(
            name=name,
            group=group(portion, control=control),
            host_memory=not control,
            settings={
                "portion": portion,
                "pin_memory": pin,
                "non_blocking": non_blocking,
                "num_workers": workers,
                "prefetch_factor": prefetch,
                "background": "device" if background else "off",
                "resident": name == RESIDENT,
            },
        )
        for control in (False, True)
        for portion in PORTIONS
        for name, (pin, non_blocking, workers, prefetch, background) in MATRIX.items()
    )


def _grows(figures: Figures) -> Judged:
    return grows(figures, BASELINE, MAIN)


def _resident_fastest(figures: Figures) -> Judged:
    others = [name for name in MATRIX if name != RESIDENT]
    return all_hold(
        [
            faster(mean_change(figures, RESIDENT, name, MAIN))
            for name in others
            if any(figures.measured(name, part) for part in MAIN)
        ]
        or [faster(mean_change(figures, RESIDENT, BASELINE, MAIN))]
    )


def _pinning(figures: Figures) -> Judged:
    with_background = faster(mean_change(figures, "8", "9", MAIN))
    small = faster(mean_change(figures, "1", BASELINE, MAIN[:1]))
    large = unchanged(mean_change(figures, "1", BASELINE, MAIN[-1:]))
    return all_hold([with_background, small, large])


def _non_blocking(figures: Figures) -> Judged:
    large = faster(mean_change(figures, "2", "1", MAIN[-1:]))
    small = slower(mean_change(figures, "2", "1", MAIN[:1]))
    return all_hold([large, small])


def _workers_slow(figures: Figures) -> Judged:
    return all_hold([slower(mean_change(figures, name, "2", MAIN)) for name in "3456"])


def _fewer_workers(figures: Figures) -> Judged:
    pairs = (("6", "4"), ("5", "3"))
    return all_hold([faster(mean_change(figures, few, many, MAIN)) for few, many in pairs])


def _prefetch(figures: Figures) -> Judged:
    many = faster(mean_change(figures, "3", "4", MAIN))
    few = faster(mean_change(figures, "6", "5", MAIN))
    return all_hold([many, few])


def _background(figures: Figures) -> Judged:
    pairs = (("7", "2"), ("8", "1"), ("9", BASELINE))
    return all_hold([faster(mean_change(figures, a, b, MAIN)) for a, b in pairs])


def _resident_memory(figures: Figures) -> Judged:
    rest = [unchanged(figures.memory_change(BASELINE, MAIN[0], MAIN[-1]))]
    return all_hold([slower(figures.memory_change(RESIDENT, MAIN[0], MAIN[-1])), *rest])


def _memory_unchanged(figures: Figures) -> Judged:
    pairs = (("1", BASELINE), ("2", "1"))
    return all_hold([unchanged(figures.memory_between(a, b, MAIN)) for a, b in pairs])


def _memory_added(figures: Figures) -> Judged:
    pairs = (("6", "2"), ("5", "6"), ("7", "2"))
    return all_hold([slower(figures.memory_between(a, b, MAIN)) for a, b in pairs])


WHO_IS_FASTER = Preset(
    name="who-is-faster",
    summary="Pinning, non_blocking, workers, prefetch, background and resident, 11 combinations "
    "at 10, 40 and 70 % of the dataset.",
    recipe="mnist",
    baseline=BASELINE,
    rows=rows,
    budget_s=440.0,
    shortened="each repeat is a window of steps, not a whole training; epochs are computed from "
    "steps, start-up and boundary",
    claims=(
        Claim(text="training time grows with the portion", published="grows", rule=_grows),
        Claim(text="the resident dataset is fastest", published="fastest", rule=_resident_fastest),
        Claim(
            text="pinning helps only with background or small data",
            published="faster, faster, no change at 70 %",
            rule=_pinning,
        ),
        Claim(
            text="non_blocking helps large data and hurts small",
            published="faster at 70 %, slower at 10 %",
            rule=_non_blocking,
        ),
        Claim(text="workers slow training", published="slower", rule=_workers_slow),
        Claim(text="fewer workers are faster", published="faster", rule=_fewer_workers),
        Claim(
            text="larger prefetch suits many workers, smaller few",
            published="8 better at 8 workers, 2 better at 4",
            rule=_prefetch,
        ),
        Claim(text="background speeds up", published="faster", rule=_background),
        Claim(
            text="resident memory grows with portion, the rest is nearly constant",
            published="grows; constant",
            rule=_resident_memory,
        ),
        Claim(
            text="pin_memory and non_blocking leave GPU memory unchanged",
            published="no change",
            rule=_memory_unchanged,
        ),
        Claim(
            text="workers, prefetch and background add a little GPU memory",
            published="a little more each",
            rule=_memory_added,
        ),
    ),
)

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
