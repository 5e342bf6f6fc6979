"""All ranks of one job as one loop: what a trial of several processes came to.

Comes in: the window that each rank measured. Goes out: one window, of the whole job. The ranks of a
job meet in every step, so the slowest rank's steps are the job's; a step's samples are those of all
ranks together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command.launched_run import OnEvent
from loaderdoctor.instrument.command.rank_group import RankGroup
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone, WindowRequest


class NoJobError(RunError):
    """The processes train each on its own: nothing of theirs is a trial of several ranks."""


@dataclass(slots=True, eq=False)
class JobRun(RankGroup):
    """A job whose windows are those of all its ranks together."""

    def wait_observed(
        self, timeout_s: float | None = None, on_event: OnEvent | None = None
    ) -> Observed:
        """Wait until every rank is warm. Raises RunError; NoJobError where they form no group."""
        observed = RankGroup.wait_observed(self, timeout_s, on_event)
        n_ranks = self.target.n_ranks
        sizes = {m.observed.group_size for m in self.measured if m.observed is not None}
        if sizes == {None} or sizes == {1}:
            raise NoJobError(
                f"started as {n_ranks} processes by torch's launcher, they train each on its "
                "own: wrapping the model in DistributedDataParallel is a change of the script"
            )
        if len(self.measured) < n_ranks or sizes != {n_ranks}:
            known = ", ".join(str(size) for size in sizes)
            raise RunError(
                f"{self.target.label}: {len(self.measured)} of {n_ranks} ranks train, in a "
                f"process group of {known}."
            )
        return observed

    def measure(
        self,
        requests: Sequence[WindowRequest],
        on_event: OnEvent | None = None,
        timeout_s: float | None = None,
    ) -> list[WindowDone]:
        """Measure windows on all ranks together; one comes back for each request."""
        return [self._merged(w) for w in RankGroup.measure(self, requests, on_event, timeout_s)]

    def _merged(self, window: WindowDone) -> WindowDone:
        if window.status in ("failed", "skipped"):
            return window
        return merged([m.done[window.id] for m in self.measured if window.id in m.done])


def merged(ranks: Sequence[WindowDone]) -> WindowDone:
    """The same window of every rank, as one of the job.

    Times, fetches and trace are those of the rank whose steps took longest; samples, host memory
    and CPU time are sums, GPU peaks those of the fullest device.
    """
    slowest = max(ranks, key=_step_ns)
    samples_per_step = sum(w.n_samples / w.n_steps for w in ranks if w.n_steps)
    short = next((w for w in ranks if w.status == "short"), slowest)
    return msgspec.structs.replace(
        slowest,
        status=short.status,
        reason=short.reason,
        n_samples=round(samples_per_step * slowest.n_steps),
        worker_cpu_ns=_total([w.worker_cpu_ns for w in ranks]),
        main_cpu_ns=_total([w.main_cpu_ns for w in ranks]),
        host_bytes=_total([w.host_bytes for w in ranks]),
        tensor_peak_bytes=_total([w.tensor_peak_bytes for w in ranks]),
        gpu_peak_allocated_bytes=_largest([w.gpu_peak_allocated_bytes for w in ranks]),
        gpu_peak_reserved_bytes=_largest([w.gpu_peak_reserved_bytes for w in ranks]),
    )


def _step_ns(window: WindowDone) -> float:
    times = window.device_step_ns or window.host_step_ns
    return sum(times) / max(1, len(times))


def _total(values: Sequence[int | None]) -> int | None:
    """None where one of them was not recorded."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
