"""`workers-pinning`: the classic table, worker counts with and without pinned memory."""

from __future__ import annotations

from loaderdoctor.sweep.presets.figures import Figures
from loaderdoctor.sweep.presets.judge import faster, not_testable, worst
from loaderdoctor.sweep.presets.model import Claim, Judged, Preset, rows_of
from loaderdoctor.tryout.trials import Row

COUNTS = (0, 1, 2, 4, 8)


def name(workers: int, *, pinned: bool) -> str:
    """`4 workers, pinned`."""
    return f"{workers} worker{'' if workers == 1 else 's'}" + (", pinned" if pinned else "")


BASELINE = name(0, pinned=False)

ROWS = tuple(
    Row(
        name=name(workers, pinned=pinned),
        settings={"num_workers": workers, "pin_memory": pinned},
    )
    for pinned in (False, True)
    for workers in COUNTS
)


def _only_while_load_exceeds_compute(figures: Figures) -> Judged:
    """Workers must help where load > compute at 0 workers, and must not where it is smaller."""
    load = figures.load_and_rest_ms()
    if load is None:
        return not_testable("what loading costs was not measured (no ablation)")
    load_ms, rest_ms = load
    changes = [figures.change(name(n, pinned=False), BASELINE) for n in COUNTS[1:]]
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
    baseline=BASELINE,
    rows=rows_of(*ROWS),
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
