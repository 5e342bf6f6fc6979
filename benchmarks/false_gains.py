"""How often noise alone makes a diagnosis recommend a setting: trials of what can not help.

    python benchmarks/false_gains.py [--diagnoses 1000] [--gain 0] [--only WORDS] [--series FILE]
    python benchmarks/false_gains.py --sweeps 60 [--seed 0] [--only WORDS] [--budget 70] [--jobs 1]

Each diagnosis is the real one from the moment it tries settings: candidates compete for the seconds
there are, winners are added up, and where nothing was shown it goes on up to the second cap. Its
windows are played from a series of steps as `benchmarks/coverage.py` has them (recorded, and
simulated kinds of noise), one after another with the batches that a trial drops between them, so
drift, bursts and unlike neighbours are those of a real machine. No setting changes the step, unless
`--gain` says what part of it the first of them takes away; then the table says how often that is
found, which is what caution costs.

A diagnosis fails where anything is recommended that does not help (family-wise). At most 5 in 100
may.

`--sweeps` plays so many whole sweeps instead, as `benchmarks/same_answer.py` does, of a loop whose
step costs the same under all settings, where windows vary by 3, 10 and 20 %.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from coverage import SERIES, Series, recorded, simulated
from played import Played
from same_answer import Loop, Pace, answer

from loaderdoctor.diagnosis.budget import SECOND_CAP
from loaderdoctor.diagnosis.verify import Verification, Verifier
from loaderdoctor.instrument.wire.protocol import (
    Observed,
    WindowDone,
    WindowRequest,
)
from loaderdoctor.instrument.wire.records import Environment, LoaderRecord
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.ablating import LoopEvidence
from loaderdoctor.tryout.competition import is_loose
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.windows import sizes

BUDGET_S = 45.0
# Of it what trials get: half of what the reserve and a profile leave, and what ablation spared.
LEFT_S, MORE_S = 25.0, (SECOND_CAP - 1) * BUDGET_S
OPEN_S = 0.4  # of a trial's pool, and its end
WARMUP = 3
# What a starved loop with workers is offered at the most: three pools, a background thread, memory
# that is pinned; and samples kept, written into the dataset's code.
CANDIDATES = (
    Settings(num_workers=4),
    Settings(num_workers=6),
    Settings(num_workers=2),
    Settings(background="host"),
    Settings(pin_memory=True, non_blocking=True),
)
IN_CODE = (Settings(cache=True),)


class PlayedRun(Played):
    """Answers windows with the steps of a series, from a random place on, round and round."""

    def __init__(
        self, series: Series, *, factor: Callable[[Mapping[str, Any]], float], seed: int
    ) -> None:
        super().__init__()
        self._steps = list(series.step_ms)
        self._factor = factor
        self._at = random.Random(seed).randrange(len(self._steps))
        step_ms = fmean(self._steps)
        self.observed = Observed(
            definition="one batch of train.py:1",
            step_ns=tuple(round(x * 1e6) for x in self._taken(max(12, series.cycle), 1.0)),
            loaders=(
                LoaderRecord(
                    id="train.py:1",
                    role="train",
                    settings=Settings(num_workers=series.cycle if series.cycle > 1 else 0),
                    batch_size=8,
                ),
            ),
            transfers=(),
            boundaries=(),
            n_steps_so_far=max(12, series.cycle),
            device="cuda:0",
            batches_per_cycle=series.cycle,
            environment=_environment(),
        )
        self._step_s = step_ms / 1e3

    def _taken(self, n: int, factor: float) -> list[float]:
        """The next `n` steps; time passes by what they take."""
        steps = self._steps
        found = [factor * steps[(self._at + i) % len(steps)] for i in range(n)]
        self._at = (self._at + n) % len(steps)
        self.now_s += sum(found) / 1e3
        return found

    def _one(self, request: WindowRequest) -> WindowDone:
        changed = request.settings.changed() if request.settings is not None else {}
        factor, dropped = self._factor(changed), WARMUP
        if request.mode == "trial":
            dropped += 4 * int(changed.get("num_workers") or 1)
            passed = round(OPEN_S / self._step_s)
            self._at = (self._at + passed) % len(self._steps)
            self.now_s += OPEN_S
        self._taken(dropped, factor)
        steps = tuple(round(x * 1e6) for x in self._taken(request.n_steps, factor))
        return WindowDone(
            id=request.id,
            mode=request.mode,
            status="ok",
            n_steps=len(steps),
            n_samples=8 * len(steps),
            start_ns=0,
            end_ns=sum(steps),
            host_step_ns=steps,
        )


def _environment() -> Environment:
    return Environment(
        torch="2.11",
        python="3.12",
        platform="linux",
        device_name=None,
        device_memory_bytes=None,
        cuda=None,
        usable_cpus=8.0,
        n_threads=1,
        memory_available_bytes=None,
        shm_free_bytes=None,
        open_files_limit=None,
        start_method="fork",
        host="here",
    )


def diagnosed(series: Series, *, gain: float, seed: int) -> Verification:
    """What the trials of one diagnosis came to; `gain` of the step is what the first one saves."""

    def factor(changed: Mapping[str, Any]) -> float:
        return 1.0 - gain if changed.get("num_workers") == CANDIDATES[0].num_workers else 1.0

    run = PlayedRun(series, factor=factor, seed=seed)
    verifier = Verifier(
        LoopEvidence(observed=run.observed, sizes=sizes(run.observed, budget_s=BUDGET_S)),
        Equipment(script_run=run, clock=run.clock),
        left_s=LEFT_S,
    )
    order = list(CANDIDATES)
    random.Random(seed + 1).shuffle(order)
    found = verifier.verify(order, rest_ms=None, in_code=IN_CODE)
    until_s = run.now_s + MORE_S
    if found.best is None and verifier.undecided:
        found = verifier.go_on(MORE_S)
    if found.best is not None and is_loose(found.best):
        found = verifier.confirm(found.best, until_s - run.now_s)
    return found


def false_and_found(found: Verification, *, gain: float) -> tuple[bool, bool]:
    """(something is recommended that does not help, what helps is)."""
    right = CANDIDATES[0].num_workers if gain else None
    named = [found.best] if found.best is not None else []
    named += [one for one in found.tried if one.in_code and one.helps]
    hits = [one.settings.num_workers == right and bool(gain) for one in named]
    return not all(hits), any(hits)


class Unchanged(Loop):
    """A loop that costs the same whatever is set."""

    def step_ms(self, settings: Settings) -> float:
        return self.own_ms

    def boundary_of(self, settings: Settings) -> float:
        return self.boundary_ms


UNCHANGED = Unchanged(own_ms=20.0, by_workers={}, background_ms=20.0, boundary_ms=1.0)


def swept(seed: int, *, between: float, budget_s: float) -> str:
    """What one sweep recommends of a loop that nothing changes."""
    return answer(UNCHANGED, Pace(between=between), budget_s=budget_s, seed=seed)[0]


def main_of_sweeps(args: argparse.Namespace) -> int:
    """The table of `--sweeps`."""
    print("| windows vary by | something useless recommended | what, by seed |\n|---|---|---|")
    most, seeds = 0, range(args.seed, args.seed + args.sweeps)
    with ProcessPoolExecutor(args.jobs) as pool:
        for between in (0.03, 0.1, 0.2):
            if args.only not in f"{between:.0%}":
                continue
            play = partial(swept, between=between, budget_s=args.budget)
            said = dict(zip(seeds, pool.map(play, seeds), strict=True))
            wrong = [f"{seed}: {one}" for seed, one in said.items() if one != "nothing"]
            most = max(most, len(wrong))
            row = f"{len(wrong)} of {args.sweeps} | {'; '.join(wrong)}"
            print(f"| {between:.0%} | {row} |", flush=True)
    return 0 if most <= 0.05 * args.sweeps else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--diagnoses", type=int, default=1000, help="over all series together")
    parser.add_argument("--gain", type=float, default=0.0, help="of the step, by one candidate")
    parser.add_argument("--only", default="", help="series or paces that hold this")
    parser.add_argument("--series", type=Path, default=SERIES)
    parser.add_argument("--sweeps", type=int, default=0, help="instead, at each pace")
    parser.add_argument("--seed", type=int, default=0, help="of the first sweep")
    parser.add_argument("--budget", type=float, default=70.0, help="of a sweep, seconds played")
    parser.add_argument("--jobs", type=int, default=1, help="sweeps at a time")
    args = parser.parse_args()
    if args.sweeps:
        return main_of_sweeps(args)
    every = [x for x in (*recorded(args.series), *simulated(1)) if args.only in x.name]
    n_each = max(1, round(args.diagnoses / len(every)))
    print("| series | something useless recommended | found | windows |\n|---|---|---|---|")
    wrong, found_all = 0, 0
    for i, series in enumerate(every):
        bad, hit, n_windows = 0, 0, 0
        for k in range(n_each):
            found = diagnosed(series, gain=args.gain, seed=1000 * i + k)
            is_false, is_found = false_and_found(found, gain=args.gain)
            bad += is_false
            hit += is_found
            n_windows += sum(one.n_rounds for one in found.tried)
        wrong, found_all = wrong + bad, found_all + hit
        print(
            f"| {series.name} | {bad} of {n_each} | {hit} | {n_windows / n_each:.1f} |", flush=True
        )
    n = n_each * len(every)
    print(
        f"\n{wrong} of {n} diagnoses ({wrong / n:.1%}) recommend what does not help; "
        f"{found_all} found what does."
    )
    return 0 if wrong <= 0.05 * n else 1


if __name__ == "__main__":
    sys.exit(main())
