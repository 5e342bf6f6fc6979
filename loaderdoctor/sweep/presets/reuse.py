"""`reuse`: workers and iterators kept from epoch to epoch, with and without resident data."""

from __future__ import annotations

from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.judge import faster, not_faster
from loaderdoctor.sweep.presets.model import Claim, Judged, Preset, rows_of
from loaderdoctor.tryout.trials import Published, Row

PLAIN, PERSISTENT, KEPT = "plain", "persistent workers", "iterator kept across epochs"
COPIED, RESIDENT = "copied each step", "resident"
KINDS: dict[str, dict[str, Published]] = {
    PLAIN: {"persistent_workers": False},
    PERSISTENT: {"persistent_workers": True},
    KEPT: {"persistent_workers": True, "keep_iterator": True},
}
ROWS = tuple(
    Row(
        name=name,
        group=group,
        # Resident data needs no workers; rows that ask for them there say so.
        settings={"num_workers": 0, "resident": True}
        if group == RESIDENT and name == PLAIN
        else {"num_workers": 2, "prefetch_factor": 2, **values, "resident": group == RESIDENT},
    )
    for group in (COPIED, RESIDENT)
    for name, values in KINDS.items()
)


def _persistent(figures: Figures) -> Judged:
    return faster(figures.change(PERSISTENT, PLAIN, COPIED))


def _kept(figures: Figures) -> Judged:
    return faster(figures.change(KEPT, PLAIN, COPIED))


def _resident(figures: Figures) -> Judged:
    return not_faster(figures.change(PERSISTENT, PLAIN, RESIDENT))


REUSE = Preset(
    name="reuse",
    summary="Persistent workers and a kept iterator: what an epoch's start costs.",
    recipe="mnist",
    baseline=PLAIN,
    rows=rows_of(*ROWS),
    budget_s=60.0,
    n_rounds=5,
    claims=(
        Claim(text="persistent workers are faster", published="faster", rule=_persistent),
        Claim(text="a kept iterator is faster", published="faster", rule=_kept),
        Claim(text="no gain when resident", published="no gain", rule=_resident),
    ),
)
