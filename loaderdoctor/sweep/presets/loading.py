"""Published experiments on loading.

Counts of workers with and without pinning, prefetchers, what is kept from epoch to epoch, and the
loader alone.
"""

from __future__ import annotations

from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.judge import (
    all_hold,
    faster,
    mean_change,
    not_faster,
    not_testable,
    worst,
)
from loaderdoctor.sweep.presets.model import Claim, Judged, Preset, rows_of
from loaderdoctor.tryout.trials import Published, Row

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


def _only_while_load_exceeds_compute(figures: Figures) -> Judged:
    """Workers must help where load > compute at 0 workers, and must not where it is smaller."""
    load = figures.load_and_rest_ms()
    if load is None:
        return not_testable("what loading costs was not measured (no ablation)")
    load_ms, rest_ms = load
    changes = [figures.change(_row(n), _row(0)) for n in _WORKERS[1:]]
    known = [c for c in changes if c.estimate is not None]
    if not known:
        return worst(changes)
    best = min(known, key=lambda change: change.value)
    helped = faster(best)
    words = f"load {load_ms:.3g} ms, rest {rest_ms:.3g} ms; best with workers: {helped.ours}"
    if load_ms > rest_ms:
        return Judged(verdict=helped.verdict, ours=words, reason=helped.reason)
    turned = {"agrees": "disagrees", "disagrees": "agrees"}
    noise = helped.verdict == "not separable from noise"
    verdict = "agrees" if noise else turned.get(helped.verdict, helped.verdict)
    return Judged(verdict=verdict, ours=words, reason=helped.reason)  # type: ignore[arg-type]


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


def _little_when_resident(figures: Figures) -> Judged:
    ones = [
        mean_change(figures, name, ["plain"], (RESIDENT,)) for name in ("background", "side stream")
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
