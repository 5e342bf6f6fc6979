"""Which of two settings is the simpler one: what is recommended among those that are equally fast.

In this order: the fewest differences from what the loop does now, each a line to write and to
explain; then the fewest workers, which is the least memory; then the fewest batches in flight. A
change of the loop's own code counts as two differences, since an argument of the loader is one.
Nothing of that depends on what was measured, so two sweeps of one loop agree.

Equally fast are those that are not shown to be `SIMPLER_SHARE` slower than the fastest. Which trial
happens to be the fastest of many that are alike, noise decides: where windows vary much, all that
noise can explain must count, or each sweep recommends another (`benchmarks/repeat_sweep.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts.own_settings import meaning
from loaderdoctor.settings import AXES_BY_NAME, Settings

# What is that much slower than the fastest, beyond what noise explains, is as good where it is
# simpler. Of 20 simulated sweeps of four loops whose windows vary by 2 %, 20 agreed with others of
# their loop; at 0.03 it was 19, and 15 where the value alone decided as soon as intervals were
# narrow: the fastest of many looks faster than it is.
SIMPLER_SHARE = 0.05
# Lines in the training loop, against one argument of a call.
IN_LOOP = 2

Complexity = tuple[int, int, int, str]


def needed_changes(settings: Settings, own: Settings) -> Settings:
    """What must be written to get `settings`: without what the loop has, and torch's defaults."""
    full = meaning(settings, own)
    kept = {}
    for name, value in settings.changed().items():
        without = meaning(replace(settings, **{name: None}), own)
        if without != full:
            kept[name] = value
    return Settings(**kept)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def complexity(settings: Settings, own: Settings) -> Complexity:
    """Smaller is simpler; equal only for settings with one label."""
    full, changes = meaning(settings, own), needed_changes(settings, own).changed()
    weight = sum(1 if AXES_BY_NAME[name].where == "DataLoader" else IN_LOOP for name in changes)
    return weight, full.num_workers or 0, full.queue_length, settings.label()


def equally_fast(best_ms: float, slower: Mapping[int, Estimate], *, wider: float) -> frozenset[int]:
    """Of trials, by index, with how much slower they are than the fastest: the equally fast ones.

    One interval, the usual one of all, `wider` for the number of comparisons: an interval of few
    rounds is itself uncertain, and which trials it ties would change from sweep to sweep.
    """
    margins = [one.margin for one in slower.values() if one.bounded]
    usual_ms = wider * median(margins) if margins else float("inf")
    limit_ms = SIMPLER_SHARE * best_ms + usual_ms
    return frozenset(index for index, one in slower.items() if one.value <= limit_ms)


def simplest(among: Sequence[Settings], own: Settings) -> int:
    """The index of the simplest of them. Raises ValueError on none."""
    return min(range(len(among)), key=lambda i: complexity(among[i], own))
