"""What a process told besides its times: page faults, and how full its loader's queues were."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loaderdoctor.instrument.wire.protocol import Beat


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one process told besides its times; None: not told."""

    minor_faults: int | None = None  # page faults so far
    major_faults: int | None = None
    ready_batches: int | None = None  # that stood in the queues at the last beat, …
    asked_batches: int | None = None  # … of so many that workers were asked for

    def after(self, beat: Beat) -> Counted:
        """With this one."""
        return Counted(
            minor_faults=_more(self.minor_faults, beat.minor_faults),
            major_faults=_more(self.major_faults, beat.major_faults),
            ready_batches=beat.queue.n_ready if beat.queue is not None else None,
            asked_batches=beat.queue.n_asked if beat.queue is not None else None,
        )

    def since(self, before: Counted) -> Counted:
        """Faults of the time between the two alone."""
        return replace(
            self,
            minor_faults=_less(self.minor_faults, before.minor_faults),
            major_faults=_less(self.major_faults, before.major_faults),
        )


def _more(so_far: int | None, now: int | None) -> int | None:
    return so_far if now is None else (so_far or 0) + now


def _less(so_far: int | None, before: int | None) -> int | None:
    return None if so_far is None else so_far - (before or 0)
