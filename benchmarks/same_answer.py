"""How often sweeps of one loop give the same answer: whole sweeps over loops whose costs are known.

    python benchmarks/same_answer.py [--sweeps 40] [--budget 70] [--only WORDS] [--seed 0]
        [--jobs 1] [--keep-all]

Each sweep is the real one: its grid, its rounds, its rule for what is recommended. Only the loop
is played: a step takes what its settings cost, at the pace of the machine at that moment. Paces are
those of recorded series of steps (`step_series.json.gz`), of machines that give each window a
pace of its own (as windows of real sweeps had them: 5 to 18 % on quiet cores of a large virtual
machine, 15 to 50 % on two shared ones), and of both at once. The table says what the sweeps
recommend, how likely at least four of five agree (by drawing five of them), and what the answer
costs beside the best there is.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from coverage import SERIES, recorded
from played import Played

from loaderdoctor.facts import meaning
from loaderdoctor.instrument.wire.protocol import (
    Observed,
    WindowDone,
    WindowRequest,
)
from loaderdoctor.instrument.wire.records import Environment, LoaderRecord
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.grid import default_trials
from loaderdoctor.tryout import Options
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.ranking import needed_changes

CPUS = 4.0
STEPS_PER_EPOCH = 900
OWN = Settings(num_workers=0, pin_memory=False)
GROUP, NEEDED = 5, 4
WARMUP = 3
OPEN_S, FORK_S = 0.12, 0.03  # of a pool, and of each worker more


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What a step costs under settings, milliseconds, and a boundary between epochs."""

    own_ms: float
    by_workers: dict[int, float]
    background_ms: float
    kept: float = 1.0  # factor of workers that persist
    deeper: float = 1.0  # of a deeper queue
    boundary_ms: float = 45.0

    def step_ms(self, settings: Settings) -> float:
        """Of one step, without its part of the boundary."""
        full = meaning(settings, OWN)
        workers = full.num_workers or 0
        found = self.by_workers[workers] if workers else self.own_ms
        if full.background == "host":
            found = min(found * 1.03, self.background_ms) if not workers else found * 1.03
        if workers:
            found *= self.kept if full.persistent_workers else 1.0
            found *= self.deeper if full.prefetch_factor == 4 else 1.0
        return found

    def boundary_of(self, settings: Settings) -> float:
        """Of one boundary."""
        full = meaning(settings, OWN)
        if not full.num_workers:
            return 1.0
        return 3.0 if full.persistent_workers else self.boundary_ms * (1 + full.num_workers / 4)

    def cost_ms(self, settings: Settings) -> float:
        """All of it, by step."""
        return self.step_ms(settings) + self.boundary_of(settings) / STEPS_PER_EPOCH


LOOPS = {
    # As mnist on a large machine: one worker brings all there is.
    "one worker is enough": Loop(
        own_ms=28.0, by_workers={1: 22.0, 2: 21.8, 4: 22.0, 6: 22.4}, background_ms=22.5, kept=0.99
    ),
    "two workers are 4 % better than one": Loop(
        own_ms=28.0, by_workers={1: 21.0, 2: 20.2, 4: 20.2, 6: 20.6}, background_ms=23.0, kept=0.99
    ),
    "two are 12 % better than one": Loop(
        own_ms=28.0, by_workers={1: 21.0, 2: 18.5, 4: 18.3, 6: 18.6}, background_ms=23.0, kept=0.98
    ),
    "workers halve until four": Loop(
        own_ms=30.0, by_workers={1: 25.0, 2: 13.0, 4: 7.5, 6: 7.6}, background_ms=24.0, kept=0.98
    ),
    # As tensors: small batches, where handing them over costs more than making them.
    "only a thread helps": Loop(
        own_ms=4.0, by_workers={1: 4.1, 2: 4.2, 4: 4.4, 6: 4.6}, background_ms=2.9
    ),
    "workers gain a tenth": Loop(
        own_ms=20.0, by_workers={1: 18.0, 2: 17.9, 4: 18.0, 6: 18.2}, background_ms=19.0
    ),
    "nothing helps": Loop(
        own_ms=20.0, by_workers={1: 20.2, 2: 20.3, 4: 20.6, 6: 21.0}, background_ms=20.3
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a machine's pace goes: a series of relative steps, and each window's own."""

    between: float = 0.0  # standard deviation of a window's own pace
    within: float = 0.05  # of its steps
    series: Sequence[float] = ()  # relative, in a row; () is an even pace
    series_ms: float = 20.0  # what a step of the series takes at pace 1


class PlayedLoop(Played):
    """A loop whose costs are known, at the pace of a machine."""

    def __init__(self, *, loop: Loop, pace: Pace, seed: int, observed: Observed) -> None:
        super().__init__()
        self.loop, self.pace, self.observed = loop, pace, observed
        self._random = random.Random(seed)
        self._work: Any = None
        self._time: Any = None
        self._at = 0.0
        if pace.series:
            times = np.cumsum(np.concatenate([[0.0], np.asarray(pace.series, dtype=float)]))
            self._time = times * pace.series_ms
            self._work = np.arange(len(times)) * float(times[-1]) / (len(times) - 1)
            self._work = self._work * pace.series_ms
            self._at = self._random.uniform(0.0, float(self._time[-1]))

    def _passed(self, ms: float) -> None:
        self.now_s += ms / 1e3
        self._at += ms

    def _steps(self, n: int, step_ms: float) -> list[float]:
        """The next `n` steps, at the machine's pace."""
        window = math.exp(self._random.gauss(0.0, self.pace.between))
        found = []
        for _ in range(n):
            ms = step_ms * window * math.exp(self._random.gauss(0.0, self.pace.within))
            if self._time is not None:
                ms = self._played(ms)
            found.append(ms)
            self._passed(ms)
        return found

    def _played(self, work_ms: float) -> float:
        """How long so much work takes from now on, by the series, round and round."""
        whole = float(self._time[-1])
        turns, at = divmod(self._at, whole)
        done = float(np.interp(at, self._time, self._work)) + work_ms
        more, rest = divmod(done, float(self._work[-1]))
        end = (turns + more) * whole + float(np.interp(rest, self._work, self._time))
        return max(1e-3, end - self._at)

    def _one(self, request: WindowRequest) -> WindowDone:
        settings = request.settings or Settings()
        step_ms, boundary_ns = self.loop.step_ms(settings), None
        workers = meaning(settings, OWN).num_workers or 0
        dropped = WARMUP
        if request.mode == "trial":
            dropped += 2 * meaning(settings, OWN).queue_length
            self._passed(1e3 * (OPEN_S + FORK_S * workers))
            if request.measure_boundary:
                boundary = self.loop.boundary_of(settings)
                boundary *= math.exp(self._random.gauss(0.0, 0.1))
                self._passed(2 * boundary)
                boundary_ns = round(boundary * 1e6)
        self._steps(dropped, step_ms)
        steps = tuple(round(x * 1e6) for x in self._steps(request.n_steps, step_ms))
        return WindowDone(
            id=request.id,
            mode=request.mode,
            status="ok",
            n_steps=len(steps),
            n_samples=64 * len(steps),
            host_step_ns=steps,
            startup_ns=round(1e9 * (OPEN_S + FORK_S * workers))
            if request.mode == "trial"
            else None,
            boundary_ns=boundary_ns,
            trace_path=request.trace_path,
            host_bytes=2**30,
        )


def _observed(loop: Loop) -> Observed:
    record = LoaderRecord(
        id="train.py:41",
        role="train",
        settings=OWN,
        n_samples=64 * STEPS_PER_EPOCH,
        batch_size=64,
        steps_per_epoch=STEPS_PER_EPOCH,
    )
    environment = Environment(
        torch="2.11",
        python="3.12",
        platform="Linux",
        device_name=None,
        device_memory_bytes=None,
        cuda=None,
        usable_cpus=CPUS,
        n_threads=1,
        memory_available_bytes=2**34,
        shm_free_bytes=2**32,
        open_files_limit=20_000,
        start_method="fork",
        host="here",
    )
    return Observed(
        definition="one batch of train.py:41",
        step_ns=(round(loop.own_ms * 1e6),) * 20,
        loaders=(record,),
        transfers=(),
        boundaries=(),
        n_steps_so_far=20,
        device=None,
        batches_per_cycle=1,
        environment=environment,
    )


def answer(
    loop: Loop, pace: Pace, *, budget_s: float, seed: int, keep_all: bool = False
) -> tuple[str, float]:
    """(what one sweep recommends, what that costs beside the best there is - 1)."""
    seen = _observed(loop)
    run = PlayedLoop(loop=loop, pace=pace, seed=seed, observed=seen)
    trials = default_trials(seen)
    # Phases as with traces, of which only the first is asked for; what is played writes none.
    folder = Path("/dev/null/traces")
    options = Options(
        budget_s=budget_s, seed=0, trace_dir=folder, loader_only=True, keep_all=keep_all
    )
    sweep = Sweep(seen, trials, options, Equipment(script_run=run, clock=run.clock))
    sweep.run()
    ranking = sweep.ranking()
    best_ms = min(loop.cost_ms(one) for one in trials)
    if ranking.recommended is None:
        return "nothing", loop.cost_ms(OWN) / best_ms - 1
    chosen = needed_changes(ranking.results[ranking.recommended].settings, OWN)
    return chosen.label(), loop.cost_ms(chosen) / best_ms - 1


def agreement(answers: Sequence[str], rng: random.Random, n_draws: int = 4000) -> float:
    """How likely four of five such sweeps say the same."""
    hits = 0
    for _ in range(n_draws):
        drawn = Counter(rng.choices(answers, k=GROUP))
        hits += drawn.most_common(1)[0][1] >= NEEDED
    return hits / n_draws


def paces() -> dict[str, Pace]:
    """The machines, by name."""
    found = {
        f"windows vary by {between:.0%}": Pace(between=between)
        for between in (0.02, 0.05, 0.1, 0.2, 0.3)
    }
    for one in recorded(SERIES):
        if "slow" in one.name or one.cycle > 1:
            continue  # too few steps, or waits of a pool, which are no machine's pace
        mean = statistics.fmean(one.step_ms)
        series = [x / mean for x in one.step_ms]
        found[one.name] = Pace(series=series, series_ms=mean)
    return found


def _cell(
    args: tuple[str, str, range, float, bool],
) -> tuple[str, str, list[tuple[str, float]]]:
    loop, pace, seeds, budget_s, keep_all = args
    played = paces()[pace]
    rows = [
        answer(LOOPS[loop], played, budget_s=budget_s, seed=seed, keep_all=keep_all)
        for seed in seeds
    ]
    return loop, pace, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=40, help="of each loop on each machine")
    parser.add_argument("--budget", type=float, default=70.0)
    parser.add_argument("--only", default="", help="of MACHINE: LOOP, those that hold this")
    parser.add_argument("--seed", type=int, default=0, help="of the first sweep of each")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep-all", action="store_true", help="as a preset: each row to its end")
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + args.sweeps)
    cells = [
        (loop, pace, seeds, args.budget, args.keep_all)
        for pace in paces()
        for loop in LOOPS
        if args.only in f"{pace}: {loop}"
    ]
    rng = random.Random(0)
    print("| machine | loop | four of five agree | recommended | slower than the best |")
    print("|---|---|---|---|---|")
    agreeing = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for loop, pace, rows in pool.map(_cell, cells):
            said = Counter(name for name, _ in rows)
            agree = agreement([name for name, _ in rows], rng)
            agreeing.append(agree)
            shown = "; ".join(f"{n} {name}" for name, n in said.most_common(4))
            lost = statistics.fmean(cost for _, cost in rows)
            print(f"| {pace} | {loop} | {agree:.0%} | {shown} | {lost:.1%} |", flush=True)
    print(f"\nOf all, at least four of five agree in {statistics.fmean(agreeing):.1%}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
