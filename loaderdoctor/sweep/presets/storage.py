"""`storage`: the original disk with cold and warm page cache, tmpfs, and another path."""

from __future__ import annotations

from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.judge import faster, not_faster, not_testable
from loaderdoctor.sweep.presets.model import Claim, Judged, Preset, rows_of
from loaderdoctor.tryout.trials import Row

COLD, WARM, TMPFS, ANOTHER = "original, cold", "original, warm", "tmpfs", "another path"
NO_PATH = "name the other path: --grid storage=PATH"

ROWS = (
    Row(name=WARM, settings={"storage": "original"}),
    Row(name=COLD, settings={"storage": "cold"}),
    Row(name=TMPFS, settings={"storage": "tmpfs"}),
    Row(name=ANOTHER, skip=NO_PATH),
)


def rows_with_path(path: str) -> tuple[Row, ...]:
    """The rows with the path that the user named as the other one."""
    return (*ROWS[:-1], Row(name=ANOTHER, settings={"storage": path}))


def _against_disk(figures: Figures) -> Judged:
    """Ours compares with the original disk read cold; whether it turns is not known."""
    judged = faster(figures.change(TMPFS, COLD), published=-0.14)
    if judged.verdict == "not testable here":
        return judged
    return Judged(
        verdict=judged.verdict,
        ours=judged.ours,
        reason="the original disk, read cold, stands for the hard disk",
    )


def _tmpfs_against_ssd(figures: Figures) -> Judged:
    if figures.reason(WARM) or figures.reason(TMPFS):
        return not_testable(figures.reason(WARM) or figures.reason(TMPFS) or "")
    return not_faster(figures.change(TMPFS, WARM))


STORAGE = Preset(
    name="storage",
    summary="The same files from a cold disk, from memory and from another place.",
    recipe="imagefolder",
    baseline=WARM,
    rows=rows_of(*ROWS),
    budget_s=150.0,
    claims=(
        Claim(text="ssd or tmpfs against a hard disk", published="-14 %", rule=_against_disk),
        Claim(text="tmpfs is no faster than ssd", published="no faster", rule=_tmpfs_against_ssd),
    ),
)
