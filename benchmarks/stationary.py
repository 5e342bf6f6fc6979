"""False alarms of `loaderdoctor run` on stationary noise: changes told in a million steps.

    python benchmarks/stationary.py [--steps 1000000] [--seeds 10]

Each kind of noise is a series of step times whose distribution never changes, cut into blocks as a
run does, short ones and long ones. Printed: alarms of `LevelWatch` and `DriftWatch` in all seeds,
and how soon a step that doubles after step 1,000 is told.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loaderdoctor.alerts.change_points import DriftWatch, LevelWatch
from loaderdoctor.alerts.watcher import DRIFT, PACE

Series = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Series]
BLOCKS = (10, 125)  # steps in a block: of a loop of 100 ms a step, and of one of 2 ms


def correlated(rng: np.random.Generator, n: int, *, rho: float, sd: float) -> Series:
    """Exp of an autoregressive process: neighbours are alike over 1 / (1 - rho) steps."""
    made, at, fresh = np.empty(n), 0.0, np.sqrt(1 - rho * rho)
    for i, more in enumerate(rng.normal(size=n).tolist()):
        at = rho * at + fresh * more
        made[i] = at
    return np.exp(sd * made)


NOISES: dict[str, Noise] = {
    "gauss 5 %": lambda rng, n: 1 + 0.05 * rng.normal(size=n),
    "lognormal 50 %": lambda rng, n: np.exp(0.5 * rng.normal(size=n)),
    "Pareto 1.5": lambda rng, n: 1 + 0.2 * rng.pareto(1.5, size=n),
    "Pareto 1.1": lambda rng, n: 1 + 0.2 * rng.pareto(1.1, size=n),
    "AR 0.9, 30 %": lambda rng, n: correlated(rng, n, rho=0.9, sd=0.3),
    "AR 0.99, 30 %": lambda rng, n: correlated(rng, n, rho=0.99, sd=0.3),
    "AR 0.999, 20 %": lambda rng, n: correlated(rng, n, rho=0.999, sd=0.2),
    "1 step in 20 is 20x": lambda rng, n: (
        np.where(rng.random(n) < 0.05, 20.0, 1.0) * (1 + 0.05 * rng.normal(size=n))
    ),
    "bursts of 50 steps": lambda rng, n: (
        1 + 3.0 * np.repeat(rng.random(n // 50 + 1) < 0.05, 50)[:n] + 0.05 * rng.normal(size=n)
    ),
}


def alarms(steps: Series, block: int) -> int:
    """Changes told of the series."""
    n = steps.size // block
    level, drift = LevelWatch(PACE), DriftWatch(DRIFT)
    told = 0
    for value in steps[: n * block].reshape(n, block).mean(axis=1):
        changed = level.add(float(value)) is not None
        crept = drift.add(float(value)) is not None
        told += changed or crept
    return told


def told_after(noise: Noise, rng: np.random.Generator, block: int) -> int | None:
    """Steps from a doubling at step 1,000 until it is told; None: not within 2,000."""
    steps = noise(rng, 3000)
    steps[1000:] *= 2
    n = steps.size // block
    level = LevelWatch(PACE)
    for i, value in enumerate(steps[: n * block].reshape(n, block).mean(axis=1)):
        if level.add(float(value)) is not None and (i + 1) * block > 1000:
            return (i + 1) * block - 1000
    return None


def main() -> None:
    """Print a row for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    print(f"{'noise':<22}{'block':>6}{'alarms':>8}{'per million':>13}{'told after':>12}")
    for name, noise in NOISES.items():
        for block in BLOCKS:
            n = 0
            for seed in range(options.seeds):
                n += alarms(noise(np.random.default_rng(seed), options.steps), block)
            per_million = n / (options.seeds * options.steps) * 1e6
            late = told_after(noise, np.random.default_rng(0), block) if block == 10 else None
            print(f"{name:<22}{block:>6}{n:>8}{per_million:>13.2f}{late or '–':>12}", flush=True)


if __name__ == "__main__":
    main()
