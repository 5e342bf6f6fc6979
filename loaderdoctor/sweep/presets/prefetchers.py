"""`prefetchers`: plain, a background thread, a side stream, both; each also with resident data."""

from __future__ import annotations

from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.judge import all_hold, faster, mean_change, not_faster
from loaderdoctor.sweep.presets.model import Claim, Judged, Preset, rows_of
from loaderdoctor.tryout.trials import Published, Row

KINDS: dict[str, dict[str, Published]] = {
    "plain": {"background": "off", "side_stream": False},
    "background": {"background": "host", "side_stream": False},
    "side stream": {"background": "off", "side_stream": True},
    "both": {"background": "host", "side_stream": True},
}
COPIED, RESIDENT = "copied each step", "resident"
# A side stream needs pinned sources to overlap anything; all rows have them, to compare alike.
ROWS = tuple(
    Row(
        name=name,
        group=group,
        settings={**values, "num_workers": 0, "pin_memory": True, "non_blocking": True}
        if group == COPIED
        else {**values, "num_workers": 0, "resident": True},
    )
    for group in (COPIED, RESIDENT)
    for name, values in KINDS.items()
)


def _each(figures: Figures) -> Judged:
    pairs = ("background", "side stream")
    return all_hold(
        [
            faster(mean_change(figures, name, ["plain"], (COPIED,)), published=-0.10)
            for name in pairs
        ]
    )


def _both(figures: Figures) -> Judged:
    ones = [
        mean_change(figures, "both", [name], (COPIED,)) for name in ("background", "side stream")
    ]
    return all_hold([not_faster(one) for one in ones])


def _resident(figures: Figures) -> Judged:
    ones = [
        mean_change(figures, name, ["plain"], (RESIDENT,)) for name in ("background", "side stream")
    ]
    return all_hold([not_faster(one) for one in ones])


PREFETCHERS = Preset(
    name="prefetchers",
    summary="A background thread and a side stream, alone and together.",
    recipe="mnist",
    baseline="plain",
    rows=rows_of(*ROWS),
    budget_s=90.0,
    n_rounds=5,
    claims=(
        Claim(text="each prefetcher saves a tenth", published="-10 % each", rule=_each),
        Claim(text="both are no better than one", published="no better", rule=_both),
        Claim(text="little gain when resident", published="little", rule=_resident),
    ),
)
