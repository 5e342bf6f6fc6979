"""How often a 95 % interval of ours holds the truth: on recorded step series and on simulated ones.

    python benchmarks/coverage.py [--draws 400] [--series FILE]

Each draw takes rounds of windows out of a series, as a diagnosis would: in a round one window of
the loop as it is and one of a trial that takes half as long (another part of the same series, so
what it truly takes is known), in random order with a gap between them. The truth is the mean of the
series over the time that the rounds took, gaps included: what the machine does an hour later no
measurement can know. Where a simulated series has one mean, it is that. Columns, by rounds: of the
mean and of the difference, how many intervals held it and how wide they were (half the width, as a
part of the loop's step).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.estimate import Noise, Sample

SERIES = Path(__file__).with_name("step_series.json.gz")
N_ROUNDS = (1, 2, 3, 4)
FASTER = 0.5  # a trial's step, of the loop's
WINDOW_MS = 1000.0
MIN_STEPS = 4
N_SIMULATED = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Step times in a row, milliseconds."""

    name: str
    step_ms: Sequence[float]
    cycle: int = 1
    truth_ms: float | None = None  # None: of the stretch that was measured

    @property
    def n_window(self) -> int:
        """Steps of a window: about a second of whole cycles."""
        wanted = max(MIN_STEPS, round(WINDOW_MS / statistics.fmean(self.step_ms)))
        return -(-wanted // self.cycle) * self.cycle


def recorded(path: Path) -> Iterator[Series]:
    """As recorded, and what a machine with nothing else on it would have taken."""
    for name, found in json.loads(gzip.decompress(path.read_bytes())).items():
        us, waited = found["us"], found["waited_us"]
        yield Series(name=name, step_ms=[x / 1e3 for x in us], cycle=found["cycle"])
        if found["cycle"] == 1 and "two threads" not in name and sum(waited):
            alone = [max(1.0, x - y) / 1e3 for x, y in zip(us, waited, strict=True)]
            yield Series(name=f"{name}, CPU's own", step_ms=alone)


def simulated(seed: int) -> Iterator[Series]:
    """Kinds of noise whose course is known, about 20 ms a step."""
    rng = random.Random(seed)
    kinds: dict[str, Callable[[], list[float]]] = {
        "independent steps, 10 %": lambda: [20 * (1 + rng.gauss(0, 0.1)) for _ in range(4000)],
        "neighbours alike (0.7), 10 %": lambda: _alike(rng, 0.7, 0.1),
        "neighbours alike (0.98), 5 %": lambda: _alike(rng, 0.98, 0.05),
        "heavy tails: one in 50 four times": lambda: [
            20 * (1 + rng.gauss(0, 0.02)) * (4 if rng.random() < 0.02 else 1)
            for _ in range(N_SIMULATED)
        ],
        "bursts of a neighbour": lambda: _bursts(rng),
        "drift, a fifth in all": lambda: [
            20 * (1 + 0.2 * i / N_SIMULATED + rng.gauss(0, 0.05)) for i in range(N_SIMULATED)
        ],
        "waits of four workers": lambda: [
            20 * (1 + rng.gauss(0, 0.05)) + (80 * rng.uniform(0.7, 1.3) if i % 4 == 0 else 0)
            for i in range(N_SIMULATED)
        ],
        "each second another pace, 3 %": lambda: _paces(rng, 0.03),
    }
    for name, made in kinds.items():
        step_ms = made()
        yield Series(
            name=name,
            step_ms=step_ms,
            cycle=4 if "workers" in name else 1,
            truth_ms=None if "drift" in name else statistics.fmean(step_ms),
        )


def _alike(rng: random.Random, correlation: float, spread: float) -> list[float]:
    off, found = 0.0, []
    for _ in range(N_SIMULATED):
        off = correlation * off + rng.gauss(0, spread * (1 - correlation**2) ** 0.5)
        found.append(20 * max(0.1, 1 + off))
    return found


def _bursts(rng: random.Random) -> list[float]:
    found, left, slow = [], 0, False
    for _ in range(N_SIMULATED):
        if not left:
            slow = not slow
            left = 1 + int(rng.expovariate(1 / (20 if slow else 60)))
        left -= 1
        found.append(20 * (1 + rng.gauss(0, 0.03)) * (1.6 if slow else 1.0))
    return found


def _paces(rng: random.Random, spread: float) -> list[float]:
    found: list[float] = []
    while len(found) < N_SIMULATED:
        pace = 1 + rng.gauss(0, spread)
        found += [20 * pace * (1 + rng.gauss(0, 0.02)) for _ in range(50)]
    return found


@dataclass(slots=True)
class Held:
    """How many of some intervals held the truth, and how wide they were."""

    n: int = 0
    held: int = 0
    width: float = 0.0

    def add(self, low: float, high: float, truth: float, unit: float) -> None:
        self.n += 1
        self.held += low <= truth <= high
        self.width += (high - low) / 2 / unit

    @property
    def share(self) -> float:
        return self.held / self.n

    @property
    def mean_width(self) -> float:
        return self.width / self.n


def coverage(one: Series, n_rounds: int, n_draws: int, rng: random.Random) -> tuple[Held, Held]:
    """(of the loop's mean, of the difference) over random draws."""
    steps, n = one.step_ms, one.n_window
    mean, difference = Held(), Held()
    apart = 4 * n  # dropped batches, warm-up and windows of other settings go before each
    whole = 2 * n_rounds * apart
    if len(steps) < whole:
        return mean, difference
    for _ in range(n_draws):
        begin = rng.randrange(len(steps) - whole + 1)
        truth = one.truth_ms or statistics.fmean(steps[begin : begin + whole])
        own, trial = [], []
        for r in range(n_rounds):
            at = [begin + (2 * r + i) * apart for i in (0, 1)]
            rng.shuffle(at)
            own.append((r, Sample.of(steps[at[0] : at[0] + n], cycle=one.cycle)))
            sample = Sample.of(steps[at[1] : at[1] + n], cycle=one.cycle)
            trial.append((r, sample.scaled(FASTER)))
        noise = Noise.of([[s for _, s in own], [s for _, s in trial]])
        found = noise.mean([s for _, s in own])
        mean.add(found.low, found.high, truth, truth)
        gain = noise.difference(own, trial)
        assert gain is not None
        difference.add(gain.low, gain.high, truth * (1 - FASTER), truth)
    return mean, difference


def table(
    every: Sequence[Series], n_draws: int, seed: int = 0
) -> dict[tuple[str, int], tuple[Held, Held]]:
    """By series and number of rounds."""
    rng = random.Random(seed)
    return {(one.name, n): coverage(one, n, n_draws, rng) for one in every for n in N_ROUNDS}


def pooled(cells: Sequence[Held]) -> tuple[float, float]:
    """(share that held, mean width) over series, each counting alike."""
    known = [cell for cell in cells if cell.n]
    return statistics.fmean(c.share for c in known), statistics.fmean(c.mean_width for c in known)


def print_table(title: str, every: Sequence[Series], n_draws: int) -> None:
    found = table(every, n_draws)
    heads = " | ".join(f"mean, {n} | difference, {n}" for n in N_ROUNDS)
    print(f"\n| {title} | {heads} |\n|---|{'---|' * 2 * len(N_ROUNDS)}")
    for one in every:
        cells = [cell for n in N_ROUNDS for cell in found[one.name, n]]
        print(f"| {one.name} | " + " | ".join(map(_cell, cells)) + " |")
    sums = []
    for n in N_ROUNDS:
        for which in (0, 1):
            share, width = pooled([found[one.name, n][which] for one in every])
            sums.append(f"**{share:.1%}** ± {width:.0%}")
    print("| all | " + " | ".join(sums) + " |")


def _cell(held: Held) -> str:
    return f"{held.share:.1%} ± {held.mean_width:.0%}" if held.n else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--series", type=Path, default=SERIES)
    args = parser.parse_args()
    print_table("recorded", list(recorded(args.series)), args.draws)
    print_table("simulated", list(simulated(1)), args.draws)


if __name__ == "__main__":
    main()
