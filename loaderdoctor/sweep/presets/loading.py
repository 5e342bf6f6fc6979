"""Published experiments on loading.

Counts of workers with and without pinning, prefetchers, what is kept from epoch to epoch, and the
loader alone; where data is stored, and what the work on samples costs.
"""

from __future__ import annotations

from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.sweep.presets.model import (
    Claim,
    Figures,
    Judged,
    Preset,
    all_hold,
    faster,
    mean_change,
    mean_of,
    not_faster,
    not_testable,
    rows_of,
    unchanged,
)
from loaderdoctor.tryout import Published, Row

_WORKERS: tuple[int, ...] = (0, 1, 2, 4, 8)


def _row(workers: int, *, pinned: bool = False) -> str:
    """`4 workers, pinned`."""
    return f"{workers} worker{'' if workers == 1 else 's'}" + (", pinned" if pinned else "")


_WORKERS_ROWS = tuple(
    Row(
        name=_row(workers, pinned=pinned),
        settings={"num_workers": workers, "pin_memory": pinned},
    )
    for pinned in (False, True)
    for workers in _WORKERS
)


ABOUT_AS_LONG = "loading and the rest take about as long"


def _only_while_load_exceeds_compute(figures: Figures) -> Judged:
    """Workers must help where load > compute at 0 workers, and must not where it is smaller."""
    load = figures.load_and_rest_ms()
    if load is None:
        return not_testable("what loading costs was not measured (no ablation)")
    load_ms, rest_ms = (x.value for x in load)
    changes = [figures.change(_row(n), _row(0)) for n in _WORKERS[1:]]
    known = [c for c in changes if c.estimate is not None]
    if not known:
        return not_testable(mean_of(changes).reason or "not measured")
    best = min(known, key=lambda change: change.value)
    longer = load[0].low > load[1].high
    judged = faster(best) if longer else not_faster(best)
    ours = f"load {load_ms:.3g} ms, rest {rest_ms:.3g} ms; best with workers: {judged.ours}"
    if not longer and load[0].high >= load[1].low:
        return Judged(verdict="not separable from noise", ours=ours, reason=ABOUT_AS_LONG)
    return Judged(verdict=judged.verdict, ours=ours, reason=judged.reason)


WORKERS_PINNING = Preset(
    name="workers-pinning",
    summary="Step time over the number of workers, with and without pinned memory.",
    recipe="mnist",
    baseline=_row(0),
    rows=rows_of(*_WORKERS_ROWS),
    budget_s=120.0,
    n_rounds=5,
    claims=(
        Claim(
            text="workers help only while loading takes longer than computing",
            published="faster only while load > compute",
            rule=_only_while_load_exceeds_compute,
        ),
    ),
)


_PREFETCHERS: dict[str, dict[str, Published]] = {
    "plain": {"background": "off", "side_stream": False},
    "background": {"background": "host", "side_stream": False},
    "side stream": {"background": "off", "side_stream": True},
    "both": {"background": "host", "side_stream": True},
}
COPIED, RESIDENT = "copied each step", "resident"
# A side stream needs pinned sources to overlap anything; all rows have them, to compare alike.
_PREFETCHER_ROWS = tuple(
    Row(
        name=name,
        group=group,
        settings={**values, "num_workers": 0, "pin_memory": True, "non_blocking": True}
        if group == COPIED
        else {**values, "num_workers": 0, "resident": True},
    )
    for group in (COPIED, RESIDENT)
    for name, values in _PREFETCHERS.items()
)


def _each(figures: Figures) -> Judged:
    pairs = ("background", "side stream")
    return all_hold(
        [faster(mean_change(figures, name, "plain", (COPIED,)), published=-0.10) for name in pairs]
    )


def _both(figures: Figures) -> Judged:
    ones = [mean_change(figures, "both", name, (COPIED,)) for name in ("background", "side stream")]
    return all_hold([not_faster(one) for one in ones])


def _little_when_resident(figures: Figures) -> Judged:
    ones = [
        mean_change(figures, name, "plain", (RESIDENT,)) for name in ("background", "side stream")
    ]
    return all_hold([not_faster(one) for one in ones])


PREFETCHERS = Preset(
    name="prefetchers",
    summary="A background thread and a side stream, alone and together.",
    recipe="mnist",
    baseline="plain",
    rows=rows_of(*_PREFETCHER_ROWS),
    budget_s=90.0,
    n_rounds=5,
    claims=(
        Claim(text="each prefetcher saves a tenth", published="-10 % each", rule=_each),
        Claim(text="both are no better than one", published="no better", rule=_both),
        Claim(text="little gain when resident", published="little", rule=_little_when_resident),
    ),
)


PLAIN, PERSISTENT, KEPT = "plain", "persistent workers", "iterator kept across epochs"
_REUSED: dict[str, dict[str, Published]] = {
    PLAIN: {"persistent_workers": False},
    PERSISTENT: {"persistent_workers": True},
    KEPT: {"persistent_workers": True, "keep_iterator": True},
}
_REUSE_ROWS = tuple(
    Row(
        name=name,
        group=group,
        # Resident data needs no workers; rows that ask for them there say so.
        settings={"num_workers": 0, "resident": True}
        if group == RESIDENT and name == PLAIN
        else {"num_workers": 2, "prefetch_factor": 2, **values, "resident": group == RESIDENT},
    )
    for group in (COPIED, RESIDENT)
    for name, values in _REUSED.items()
)


def _persistent(figures: Figures) -> Judged:
    return faster(figures.change(PERSISTENT, PLAIN, COPIED))


def _kept(figures: Figures) -> Judged:
    return faster(figures.change(KEPT, PLAIN, COPIED))


def _nothing_when_resident(figures: Figures) -> Judged:
    return not_faster(figures.change(PERSISTENT, PLAIN, RESIDENT))


REUSE = Preset(
    name="reuse",
    summary="Persistent workers and a kept iterator: what an epoch's start costs.",
    recipe="mnist",
    baseline=PLAIN,
    rows=rows_of(*_REUSE_ROWS),
    budget_s=60.0,
    n_rounds=5,
    claims=(
        Claim(text="persistent workers are faster", published="faster", rule=_persistent),
        Claim(text="a kept iterator is faster", published="faster", rule=_kept),
        Claim(text="no gain when resident", published="no gain", rule=_nothing_when_resident),
    ),
)


_MANY_WORKERS = tuple(range(0, 51, 5))


LOADER, MODEL = "the loader alone", "the model alone"


# `--loader-only`: what the loader can deliver over its workers, next to what the model can take.
#
# The loop stands still while its loader is drained; the model runs on batches that are ready.

LOADER_ONLY = Preset(
    name="loader-only",
    summary="Samples/s of the loader alone over 0, 5, … 50 workers, and of the model alone.",
    recipe="mnist",
    baseline=_row(0),
    rows=rows_of(
        *(
            Row(
                name=_row(n),
                # Workers started again each epoch would be another question.
                settings={"num_workers": n, "persistent_workers": n > 0},
                group=LOADER,
            )
            for n in _MANY_WORKERS
        ),
        Row(name=MODEL, settings={"synthetic": True}, group=MODEL, base=MODEL),
    ),
    budget_s=240.0,
    one_loop=False,
)


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
        return not_testable(
            f"here synthetic batches take another time ({same.ours}): the CPU matters"
        )
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
