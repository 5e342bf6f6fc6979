"""Simulated runs: beats as a recorder would send them, and looks around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from loaderdoctor.alerts import Alert
from loaderdoctor.alerts.job import Job
from loaderdoctor.instrument.wire.measured import (
    Block,
    Collections,
    Stall,
    Sums,
    Surroundings,
    WorkersBeat,
)
from loaderdoctor.instrument.wire.protocol import Beat

BLOCK = 10
BEAT_S = 2.0
T0_S = 1_000_000.0
NS = 1_000_000_000
MEMORY = 2_000_000_000.0  # of the run, at its beginning


@dataclass(kw_only=True)
class Phase:
    """How the loop is, for `n_steps` steps. Times in ms."""

    n_steps: int
    step_ms: float = 100.0  # without the wait
    wait_ms: float = 1.0
    noise: float = 0.05  # of both
    batch_ms: float | None = 80.0  # a worker's; None: no workers
    batch_cpu_ms: float = 70.0
    n_workers: int = 4
    n_died: int = 0
    cpu_ms: float = 50.0  # of the training thread
    gc_ms: float = 0.0  # once a beat
    stall_every: int = 0  # steps
    stall_every_s: float = 0.0
    stall_ms: float = 0.0
    stall_waits: bool = True
    around: dict[str, object] = field(default_factory=dict)
    memory_per_s: float = 0.0
    walked: bool = True  # pages: or only what is known of them anyway
    free_bytes: int = 8_000_000_000


def play(phases: Sequence[Phase]) -> list[Alert]:
    """All alerts of a run."""
    return [a for some in each(phases, seed=0, rank=0, job=Job(T0_S)) for a in some]


def each(phases: Sequence[Phase], *, seed: int, rank: int, job: Job) -> Iterator[list[Alert]]:
    """Alerts beat by beat."""
    rng = np.random.default_rng(seed)
    now_ns, step, memory = NS, 0, MEMORY
    stalled_ns = 0
    for phase in phases:
        done = 0
        while done < phase.n_steps:
            per = phase.step_ms + phase.wait_ms
            n = max(BLOCK, round(BEAT_S * 1e3 / per / BLOCK) * BLOCK)
            start_ns = now_ns
            waits = np.maximum(0.0, phase.wait_ms * (1 + phase.noise * rng.normal(size=n)))
            took = waits + np.maximum(0.1, phase.step_ms * (1 + phase.noise * rng.normal(size=n)))
            stalls = []
            for i in range(n):
                number = step + i + 1
                begins_ns = now_ns + int(took[:i].sum() * 1e6)
                if (
                    begins_ns - stalled_ns >= phase.stall_every_s * NS
                    if phase.stall_every_s
                    else phase.stall_every and number % phase.stall_every == 0
                ):
                    stalled_ns = begins_ns
                    took[i] += phase.stall_ms
                    waits[i] += phase.stall_ms if phase.stall_waits else 0.0
                    at = now_ns + int(took[: i + 1].sum() * 1e6)
                    stalls.append(
                        Stall(
                            step=number,
                            at_ns=at,
                            took_ns=int(took[i] * 1e6),
                            wait_ns=int(waits[i] * 1e6),
                        )
                    )
            now_ns += int(took.sum() * 1e6)
            ends = start_ns + np.cumsum(took * 1e6).astype(int)
            blocks = tuple(
                Block(
                    step=step + i + BLOCK,
                    end_ns=int(ends[i + BLOCK - 1]),
                    n=BLOCK,
                    total_ns=int(took[i : i + BLOCK].sum() * 1e6),
                    median_ns=int(np.median(took[i : i + BLOCK]) * 1e6),
                    longest_ns=int(took[i : i + BLOCK].max() * 1e6),
                    wait_ns=int(waits[i : i + BLOCK].sum() * 1e6),
                )
                for i in range(0, n, BLOCK)
            )
            step += n
            done += n
            gc_ns = int(phase.gc_ms * 1e6)
            workers = None
            if phase.batch_ms is not None:
                workers = WorkersBeat(
                    n_alive=phase.n_workers,
                    n_died=phase.n_died if done == n else 0,
                    n_batches=n,
                    make_ns=int(n * phase.batch_ms * 1e6),
                    cpu_ns=int(n * phase.batch_cpu_ms * 1e6),
                )
            beat = Beat(
                start_ns=start_ns,
                end_ns=now_ns,
                at_s=T0_S + now_ns / NS,
                n_steps=step,
                n_epochs=0,
                sums=Sums(n_steps=n, steps_ns=now_ns - start_ns, wait_ns=int(waits.sum() * 1e6)),
                blocks=blocks,
                stalls=tuple(stalls),
                collections=Collections(n=1, total_ns=gc_ns, longest_ns=gc_ns),
                workers=workers,
                thread_cpu_ns=int(n * phase.cpu_ms * 1e6),
                main_cpu_ns=int(n * phase.cpu_ms * 1e6),
            )
            alerts = job.beat(rank, beat)
            took_s = (now_ns - start_ns) / NS
            memory += phase.memory_per_s * took_s
            look = {
                "other_cpus": 0.1,
                "throttled_share": 0.0,
                "cpu_pressure": 0.05,
                "io_pressure": 0.01,
                "memory_pressure": 0.0,
                "read_bytes_per_s": 1e6,
                **phase.around,
            }
            alerts += job.look(
                Surroundings(
                    at_s=T0_S + now_ns / NS,
                    end_ns=now_ns,
                    took_s=took_s,
                    run_bytes=int(memory) if phase.walked else None,
                    workers_bytes=int(0.8 * memory) if phase.walked else None,
                    run_private_bytes=int(memory),
                    workers_grown_bytes=int(memory - MEMORY),
                    available_bytes=int(phase.free_bytes - memory),
                    **look,  # type: ignore[arg-type]
                )
            )
            yield alerts
