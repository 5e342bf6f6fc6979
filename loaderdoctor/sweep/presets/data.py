"""Published experiments on data: where it is stored, and what the work on samples costs."""

from __future__ import annotations

from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.judge import all_hold, faster, not_faster, not_testable, unchanged
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


SAMPLES, PADDING = "samples", "padding (recipe tokens)"
ON, OFF, SYNTHETIC = "augmentation on", "all off", "synthetic batches"
SCALAR, VECTORISED = "scalar", "vectorised"
TRIMMED, COMBINED = "trimmed batches", "trimmed and vectorised"
# `preprocessing`: what the work on samples costs, transform by transform, and how to spare it.
#
# Augmentation is taken out of the running loop's dataset. Padding in Python against tensor
# operations, and batches trimmed to their longest, are options of the recipe `tokens`.

UPPER_BOUND = "the upper bound: no loading at all"
NOT_A_SETTING = "shows a cost; the model then trains on other data"
# Shorter than the recipe's own run, so that a process gets to its steps soon.
_TOKENS = ("--samples", "2000")


def rows(observed: Observed) -> tuple[Row, ...]:
    loader = observed.main_loader
    names = loader.augmentations if loader is not None else ()
    each = tuple(
        Row(
            name=f"without {name}",
            group=SAMPLES,
            settings={"augment": f"no-{name}"},
            note=NOT_A_SETTING,
        )
        for name in dict.fromkeys(names)
    )
    return (
        Row(name=ON, group=SAMPLES, settings={"augment": "on"}),
        *each,
        Row(name=OFF, group=SAMPLES, settings={"augment": "off"}, note=NOT_A_SETTING),
        Row(name=SYNTHETIC, group=SAMPLES, settings={"synthetic": True}, note=UPPER_BOUND),
        Row(name=SCALAR, group=PADDING, recipe="tokens", args=_TOKENS, base=SCALAR),
        *(
            Row(name=name, group=PADDING, recipe="tokens", args=(*_TOKENS, *words), base=SCALAR)
            for name, words in (
                (VECTORISED, ("--vectorised",)),
                (TRIMMED, ("--trim",)),
                (COMBINED, ("--trim", "--vectorised")),
            )
        ),
    )


def _vectorised(figures: Figures) -> Judged:
    return faster(figures.change(VECTORISED, SCALAR, PADDING), published=-0.34)


def _combined(figures: Figures) -> Judged:
    """Faster than either remedy alone, and less than both savings added."""
    both = figures.change(COMBINED, SCALAR, PADDING)
    ones = [figures.change(name, SCALAR, PADDING) for name in (VECTORISED, TRIMMED)]
    if both.estimate is None or any(one.estimate is None for one in ones):
        return faster(both, published=-0.39)
    judged = faster(both, published=-0.39)
    added = sum(one.value for one in ones)
    words = f"{judged.ours}; added up the two would be {added:+.0%}"
    if judged.verdict == "agrees" and both.estimate.low < added:
        return Judged(verdict="disagrees", ours=words, reason="as much as the sum")
    return Judged(verdict=judged.verdict, ours=words, reason=judged.reason)


def _synthetic(figures: Figures) -> Judged:
    """The statement is an implication: tested where synthetic batches are no faster."""
    same = unchanged(figures.change(SYNTHETIC, ON, SAMPLES))
    if same.verdict == "disagrees":
        return not_testable(f"here synthetic batches are faster ({same.ours}): the CPU matters")
    off = unchanged(figures.change(OFF, ON, SAMPLES))
    return all_hold([same, off])


PREPROCESSING = Preset(
    name="preprocessing",
    summary="Augmentation as a whole and each transform, padding, trimming, synthetic batches.",
    recipe="imagefolder",
    baseline=ON,
    rows=rows,
    budget_s=240.0,
    claims=(
        Claim(text="vectorised preprocessing saves a third", published="-34 %", rule=_vectorised),
        Claim(text="combined remedies save less than their sum", published="-39 %", rule=_combined),
        Claim(
            text="synthetic = regular means that the CPU is irrelevant",
            published="no difference then",
            rule=_synthetic,
        ),
    ),
)
