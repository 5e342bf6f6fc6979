"""Which line of the user's code the training thread is at, now and then, in a profiled window.

torch's Python stacks name each function by its first line, and one that was running when the
profiler began by the line it was at: of a loop that is its `for`, whatever line takes the time.
So with stacks a thread of ours samples where the training thread is, and the samples go into the
trace next to its events, each by the time since the step's mark.

Biased as every sampler within the interpreter: it runs when the watched thread gives up the GIL,
or some time after asking for it (see switch_interval).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from types import FrameType
from typing import Final

from loaderdoctor.instrument.workers.switch_interval import ask_as_usual, ask_soon
from loaderdoctor.instrument.workers.worker_sampling import USER, Place, kind_of, place_of

# So close together a sample costs 50 to 80 µs of CPU: by that, 2 to 4 % of the window, which is
# profiled and ranks nothing.
INTERVAL_S: Final = 0.002
MAX_STACK_SAMPLES: Final = 20_000
MAX_FRAMES: Final = 200
KEY: Final = "loaderdoctorLooks"  # in the trace, next to `traceEvents`


class LoopLines:
    """Samples one thread from `start` to `stop`."""

    def __init__(self, thread: int) -> None:
        self._thread = thread  # threading.get_ident
        self._stack_samples: list[tuple[int, Place]] = []
        self._stopping = threading.Event()
        self._own = threading.Thread(target=self._run, name="loaderdoctor-loop", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._own.start()

    def stop(self, marks: list[tuple[str, int]]) -> str:
        """End, and the samples as JSON. `marks` are the steps' spans and when each began.

        Samples before the first mark are left out: the trace has no place for them.
        """
        self._stopping.set()
        self._own.join(timeout=1.0)
        ask_as_usual()
        stack_samples, self._stack_samples = self._stack_samples, []
        places = list(dict.fromkeys(place for _, place in stack_samples))
        numbers = {place: i for i, place in enumerate(places)}
        kept: list[tuple[int, int, int]] = []
        at = -1
        for ns, place in stack_samples:
            while at + 1 < len(marks) and marks[at + 1][1] <= ns:
                at += 1
            if at >= 0:
                kept.append((at, ns - marks[at][1], numbers[place]))
        return json.dumps(
            {"marks": [name for name, _ in marks], "places": places, "looks": kept},
            separators=(",", ":"),
        )

    def _run(self) -> None:
        while not self._stopping.is_set() and len(self._stack_samples) < MAX_STACK_SAMPLES:
            sys.setprofile(None)  # torch's Python tracer, which watches every thread: not this one
            ask_soon()
            time.sleep(INTERVAL_S)
            frame = sys._current_frames().get(self._thread)
            place = _deepest(frame)
            if place is not None:
                self._stack_samples.append((time.perf_counter_ns(), place))


def _deepest(frame: FrameType | None) -> Place | None:
    """The innermost frame of the user's own code."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if kind_of(frame.f_code) == USER:
            return place_of(frame)
        frame = frame.f_back
    return None
