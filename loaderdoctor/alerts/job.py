"""Follows a whole run: each of its processes, its memory, and how its ranks compare."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from loaderdoctor import format as fmt
from loaderdoctor.alerts.alert import Alert
from loaderdoctor.alerts.growth import Growth, GrowthWatch
from loaderdoctor.alerts.history import History
from loaderdoctor.alerts.watcher import RankWatcher
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.instrument.wire.surroundings import Surroundings
from loaderdoctor.units import NS_PER_MS

# A rank whose waits exceed its peers' by this much of the step, in so many beats in a row.
BEHIND_SHARE: Final = 0.10
BEHIND_BEATS: Final = 5


@dataclass(slots=True, eq=False)
class _Rank:
    watcher: RankWatcher
    history: History
    last_step_ns: tuple[int, ...] = ()
    waits_ms: deque[float] = field(default_factory=lambda: deque(maxlen=BEHIND_BEATS))
    step_ms: float = 0.0
    pids: tuple[int, ...] = ()


class Job:
    """Beats and looks in, alerts out; what has been so far is in `histories`."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._ranks: dict[int, _Rank] = {}
        # The run's memory twice: private pages at every look, and its share of all pages, which
        # shows what forked workers copy too and is told seldom where processes are large.
        self._private, self._memory, self._shm = GrowthWatch(), GrowthWatch(), GrowthWatch()
        self._shm_most = 0
        self._behind: set[int] = set()

    @property
    def histories(self) -> dict[int, History]:
        """By rank, the lowest first."""
        return {rank: self._ranks[rank].history for rank in sorted(self._ranks)}

    @property
    def worker_pids(self) -> list[int]:
        """Of all ranks."""
        return [pid for one in self._ranks.values() for pid in one.pids]

    @property
    def last_step_ns(self) -> tuple[int, ...]:
        """Of the lowest rank."""
        first = min(self._ranks, default=None)
        return self._ranks[first].last_step_ns if first is not None else ()

    def beat(self, rank: int, beat: Beat) -> list[Alert]:
        """What a rank says; what is to be told by now."""
        one = self._ranks.get(rank)
        if one is None:
            one = self._ranks[rank] = _Rank(RankWatcher(), History(self._began_s))
        account = one.history.beat(beat)
        one.last_step_ns = (*one.last_step_ns, *beat.last_step_ns)[-256:]
        one.pids = beat.workers.pids if beat.workers is not None else ()
        told = one.watcher.beat(beat, account)
        # Ranks are in step: what changes for all is told of the lowest.
        told = told if rank == min(self._ranks) else [a for a in told if a.kind == "workers-died"]
        return told + self._compare(rank, one, beat)

    def look(self, look: Surroundings) -> list[Alert]:
        """What goes on around the run."""
        told = []
        for rank, one in self._ranks.items():
            found = one.watcher.look(look)
            told += found if rank == min(self._ranks) else []
        if look.run_bytes is not None:
            for one in self._ranks.values():
                one.history.memory(look.run_bytes)
        told += self._memory_fills(look)
        if look.shm_free_bytes is not None:
            self._shm_most = max(self._shm_most, look.shm_free_bytes)
            used = self._shm_most - look.shm_free_bytes
            grown = self._shm.add(look.at_s, used, look.shm_free_bytes)
            if grown is not None:
                told.append(self._shm_fills(look, grown))
        return told

    @property
    def _step(self) -> int:
        return max((one.history.n_steps for one in self._ranks.values()), default=0)

    def _memory_fills(self, look: Surroundings) -> list[Alert]:
        free = look.available_bytes
        if free is None:
            return []
        for watch, other, of_run, of_workers in (
            (self._private, self._memory, look.run_private_bytes, look.workers_grown_bytes),
            (self._memory, self._private, look.run_bytes, look.workers_bytes),
        ):
            if of_run is None:
                continue
            grown = watch.add(look.at_s, of_run, free, of_workers or 0)
            if grown is not None:
                other.told(grown.full_in_h)
                return [self._fills(look, grown)]
        return []

    def _fills(self, look: Surroundings, grown: Growth) -> Alert:
        at_workers = grown.part_share > 0.5
        whose = "most of it in the workers" if at_workers else "most of it in the training process"
        return Alert(
            kind="memory-fills",
            at_s=look.at_s,
            step=self._step,
            text=f"The run's memory grows by {fmt.n_bytes(grown.bytes_per_h)} an hour, {whose}, "
            f"and will be full in {fmt.seconds(grown.full_in_h * 3600)} at this rate.",
            cause="worker-memory-growth" if at_workers else "memory-growth",
            advice=(
                "Keep samples and paths in numpy arrays, not in lists of Python objects, and open "
                "files inside the worker; workers that end with each epoch start small again."
                if at_workers
                else "Look for what is kept from step to step: losses that hold their graph, "
                "lists of batches."
            ),
        )

    def _shm_fills(self, look: Surroundings, grown: Growth) -> Alert:
        return Alert(
            kind="shm-fills",
            at_s=look.at_s,
            step=self._step,
            text=f"/dev/shm fills by {fmt.n_bytes(grown.bytes_per_h)} an hour and will be full in "
            f"{fmt.seconds(grown.full_in_h * 3600)} at this rate.",
            cause="shm-growth",
            advice="Batches that are kept hold their shared memory: copy what you keep (.clone()).",
        )

    def _compare(self, rank: int, one: _Rank, beat: Beat) -> list[Alert]:
        sums = beat.sums
        if not sums.n_steps or sums.wait_ns is None:
            return []
        one.waits_ms.append(sums.wait_ns / sums.n_steps / NS_PER_MS)
        one.step_ms = sums.steps_ns / sums.n_steps / NS_PER_MS
        peers = [r for n, r in self._ranks.items() if n != rank and len(r.waits_ms) == BEHIND_BEATS]
        if not peers or len(one.waits_ms) < BEHIND_BEATS or rank in self._behind:
            return []
        theirs = median(min(r.waits_ms) for r in peers), median(max(r.waits_ms) for r in peers)
        if min(one.waits_ms) - theirs[1] < BEHIND_SHARE * one.step_ms:
            return []
        self._behind.add(rank)
        text = (
            f"Rank {rank} waits {fmt.ms(median(one.waits_ms))} a step for its batches, the others "
            f"{fmt.ms(median(theirs))}: all of them wait for it."
        )
        return [
            Alert(
                kind="rank-behind",
                at_s=beat.at_s,
                step=beat.n_steps,
                text=text,
                cause="slow-rank",
                advice=f"Look at rank {rank}'s data and machine: its storage, its shard, who else "
                "uses its CPUs.",
            )
        ]
