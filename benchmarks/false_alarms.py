"""How often noise alone passes for a loader's cost, with and without mechanisms. No real process.

    python benchmarks/false_alarms.py [--runs 1000] [--rounds 3]

Simulated rounds of a step of 100 ms, whose windows drift together (an autoregressive factor with a
memory of 0.7 from window to window, as of a neighbour that comes and goes) and differ by noise of
their own. A part of both is run-queue delay, which the counters show; the rest is CPU time (caches,
clocks). The loop waits for its loader by so much of the step; "hidden" pays it to a fight over the
interpreter instead, which no wait shows. "raw" judges by the difference alone, as before `claims`;
"claimed" by what was seen to carry it.

Printed: of how many runs the verdict is input-bound, moderate or high; how far the share is off.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean

from loaderdoctor.attribution.ablation import Round, ablation_facts
from loaderdoctor.attribution.claims import claimed
from loaderdoctor.attribution.combine import best_shares, lower_bounds
from loaderdoctor.attribution.mechanisms import LOST_PER_HELD, mechanisms
from loaderdoctor.attribution.verdict import verdict_from_shares
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.instrument.wire.measured import CpuRecord, FetchRecord
from loaderdoctor.instrument.wire.protocol import Mode, Observed, WindowDone
from loaderdoctor.instrument.wire.records import Environment, LoaderRecord

STEP_MS, N_STEPS, MEMORY, IN_RUN_QUEUE = 100.0, 8, 0.7, 0.8
WORKERS_MS = 1.0  # CPU time of a batch
NS = 1_000_000
OBSERVED = Observed(
    definition="one batch", step_ns=(), loaders=(LoaderRecord(id="train.py:1", role="train"),),
    transfers=(), boundaries=(), n_steps_so_far=0, device=None,
    batches_per_cycle=1,
    environment=Environment(
        torch="", python="", platform="", device_name=None, device_memory_bytes=None, cuda=None,
        usable_cpus=2.0, n_threads=1, memory_available_bytes=None, shm_free_bytes=None,
        open_files_limit=None, start_method="fork", host="",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What the loader truly costs, as a share of the step."""

    waited: float = 0.0
    fought: float = 0.0  # over the interpreter

    @property
    def truth(self) -> float:
        return self.waited + self.fought


class Machine:
    """Its drift goes on from window to window."""

    def __init__(self, rng: random.Random, noise: float) -> None:
        self._rng, self._noise = rng, noise
        self._drift = rng.gauss(0.0, noise)

    def window(self, mode: Mode, loop: Loop) -> WindowDone:
        """Eight steps next to whatever else runs."""
        rng, noise = self._rng, self._noise
        self._drift = MEMORY * self._drift + rng.gauss(0.0, noise * sqrt(1.0 - MEMORY**2))
        plain = mode == "plain"
        own_ms = STEP_MS * (1.0 - loop.truth)
        slower_ms = own_ms * max(0.0, self._drift + rng.gauss(0.0, noise / 2) + noise)
        queued_ms, more_ms = IN_RUN_QUEUE * slower_ms, (1.0 - IN_RUN_QUEUE) * slower_ms
        wait_ms = STEP_MS * loop.waited * max(0.1, 1.0 + rng.gauss(0.0, noise)) if plain else 0.0
        fought_ms = STEP_MS * loop.fought if plain else 0.0
        step_ns = round(NS * (own_ms + slower_ms + wait_ms + fought_ms))
        waits = [max(0.0, rng.expovariate(1.0)) for _ in range(N_STEPS)]
        each = [wait_ms * w / fmean(waits) for w in waits]
        fetches = tuple(
            FetchRecord(loader=0, start_ns=0, end_ns=round(ms * NS), thread=1, cpu_ns=0)
            for ms in each
        )
        cpu = CpuRecord(
            wall_ns=N_STEPS * step_ns,
            main_ns=0,
            waited_ns=round(N_STEPS * NS * queued_ms),
            thread_ns=round(N_STEPS * NS * (own_ms + more_ms)),
            python_ns=round(N_STEPS * NS * 1.3 * fought_ms / LOST_PER_HELD),
            python_waited_ns=0,
        )
        return WindowDone(
            id=1, mode=mode, status="ok", n_steps=N_STEPS, end_ns=N_STEPS * step_ns,
            worker_cpu_ns=round(N_STEPS * NS * (WORKERS_MS + wait_ms)),
            host_step_ns=(step_ns,) * N_STEPS, fetches=fetches if plain else (), cpu=cpu,
        )  # fmt: skip


def rounds(machine: Machine, loop: Loop, n: int, rng: random.Random) -> Iterator[Round]:
    """Both kinds of windows in shuffled order."""
    for _ in range(n):
        modes: list[Mode] = ["plain", "no_input"]
        rng.shuffle(modes)
        done = {mode: machine.window(mode, loop) for mode in modes}
        yield Round(plain=done["plain"], no_input=done["no_input"])


def by_difference(facts: AblationFacts) -> tuple[bool, float]:
    """As before claims: the difference's share, and its lower end above nothing (or 5 %)."""
    assert facts.input_ms is not None
    step_ms, cost = facts.plain_ms.value, facts.input_ms
    share, low = min(1.0, max(0.0, cost.value / step_ms)), cost.low / step_ms
    return (share >= 0.2 and low > 0.05) or (0.05 <= share < 0.2 and low > 0.0), share


def judged(facts: AblationFacts | None) -> tuple[bool, float]:
    """(input-bound at moderate or above, share)."""
    shares, low = best_shares(None, None, facts), lower_bounds(facts)
    bound, severity = verdict_from_shares(shares, low)
    found = bound == "input" and severity in ("moderate", "high")
    return found, (shares.input or 0.0) if shares is not None else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    loops = {
        "0 %": Loop(), "2 %": Loop(waited=0.02), "4 %": Loop(waited=0.04),
        "12 %": Loop(waited=0.12), "40 %": Loop(waited=0.4), "40 % hidden": Loop(fought=0.4),
    }  # fmt: skip
    print("true input   noise   raw: called   off by   claimed: called   off by")
    for name, loop in loops.items():
        for noise in (0.03, 0.1, 0.3):
            rng = random.Random(options.seed)
            raw, claims = [], []
            for _ in range(options.runs):
                machine = Machine(rng, noise)
                some = list(rounds(machine, loop, options.rounds, rng))
                facts = ablation_facts(some, steps_per_epoch=None, boundary_ms=None)
                assert facts is not None
                raw.append(by_difference(facts))
                plain = [r.plain for r in some]
                seen = mechanisms(some, plain, OBSERVED)
                claims.append(judged(claimed(replace(facts, mechanisms=seen))))
            figures = [
                (fmean(called for called, _ in runs), fmean(abs(s - loop.truth) for _, s in runs))
                for runs in (raw, claims)
            ]
            cells = "   ".join(f"{100 * a:9.1f} %   {100 * b:5.1f} pt" for a, b in figures)
            print(f"{name:12} {100 * noise:4.0f} %  {cells}")


if __name__ == "__main__":
    main()
