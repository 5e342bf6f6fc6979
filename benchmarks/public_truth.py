"""What waiting for batches truly costs a script: it runs as it is, and with ready batches.

One process of its own does both in turns, ready batches between stretches of the script as it is,
with `stopwatch/` on its path and nothing of loaderdoctor.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TextIO

STOPWATCH = Path(__file__).with_name("stopwatch")
PLAIN, READY, AGAIN = 0, 2, 4  # the stopwatch's states
# As it is: both halves.
STATES = {PLAIN: (PLAIN, AGAIN), READY: (READY,), AGAIN: (AGAIN,)}
WARM_UP = 3  # steps, in each state, and those whose batches were made before the first of them
LEAST_STEPS = 6
# Workers fill their queue while the first, slow steps run; until it is used up a loop that they are
# too slow for runs at its own pace: timm's with eight workers for 26 steps at 75 ms, then at 110 to
# 125. Such a loop waits this part of its steps at the end, and a first time for so much of one.
STARVED, DRY = 0.05, 0.1
N_BLOCKS = 4
MIN_CYCLES = 3  # fewer tell little of their own noise
RUNNING: set[subprocess.Popen[bytes]] = set()
START_LIMIT_S = 240.0  # to the last state: imports and data on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Of one run: mean milliseconds a step and of waiting for its batch.

    Steps are those of iterators during which an optimizer stepped, and begin with the call of
    `iter` in every epoch but the first. `blocks_ms` are the means of the run's quarters. Where the
    queue filled before was not seen to run dry, a step may take up to `most_ms` in the long run.
    `phases_ms`: with ready batches the mean of each stretch of them; as it is those of what came
    before and behind each: two for one there.
    """

    step_ms: float
    wait_ms: float
    blocks_ms: tuple[float, ...]
    n_steps: int
    n_epochs: int
    most_ms: float
    phases_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended: its exit code, None where it was stopped here, and what it printed.

    `plain`: so many characters of it before batches were made ready.
    """

    code: int | None
    output: str
    seconds: float
    plain: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTruth:
    """Of all runs: milliseconds a step as it is and with ready batches, and the input's share."""

    step_ms: float
    ready_ms: float
    wait_ms: float
    noise: float  # of the share: see `truth_of`

    @property
    def share(self) -> float:
        return 1.0 - self.ready_ms / self.step_ms


def truth_of(runs: Sequence[tuple[Timing, Timing]]) -> InputTruth:
    """Of each run its steps as it is and with ready batches.

    The noise is twice the standard error of the share: by how the runs' shares differ, or by what
    shows within each run, if that is more. A run is compared with itself: what makes one process
    slower than another makes it so with ready batches too.
    """
    shares = [share_of(*run) for run in runs]
    between = statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
    step_ms = statistics.mean(plain.step_ms for plain, _ in runs)
    return InputTruth(
        step_ms=step_ms,
        ready_ms=step_ms * (1.0 - statistics.mean(shares)),
        wait_ms=statistics.mean(plain.wait_ms for plain, _ in runs),
        noise=2 * max(sum(_error(*run) ** 2 for run in runs) ** 0.5 / len(runs), between),
    )


def share_of(plain: Timing, ready: Timing) -> float:
    """What ready batches save of a step, each stretch of them beside what is next to it."""
    each = _each_stretch(plain, ready)
    return statistics.mean(each) if each else 1.0 - ready.step_ms / plain.step_ms


def _error(plain: Timing, ready: Timing) -> float:
    """Of one run's share: by its stretches; of fewer than three by the quarters of both."""
    each = _each_stretch(plain, ready)
    if len(each) >= MIN_CYCLES:
        return _error_ms(each)
    return math.hypot(*(_error_ms(one.blocks_ms) for one in (plain, ready))) / plain.step_ms


def _each_stretch(plain: Timing, ready: Timing) -> list[float]:
    """Empty where some are missing, as in rows stored before there were several."""
    if len(plain.phases_ms) != 2 * len(ready.phases_ms):
        return []
    before, behind = plain.phases_ms[::2], plain.phases_ms[1::2]
    each = zip(ready.phases_ms, before, behind, strict=True)
    return [1.0 - 2.0 * one / (a + b) for one, a, b in each]


def _error_ms(blocks: Sequence[float]) -> float:
    return statistics.stdev(blocks) / len(blocks) ** 0.5 if len(blocks) > 1 else 0.0


def timed_run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    folder: Path,
    seconds: float,
    ready: bool,
    n_cycles: int = 1,
    start_limit_s: float = START_LIMIT_S,
) -> tuple[Timing | None, Timing | None, Ended]:
    """Run `command` as it is, then with ready batches, then as it is again: `n_cycles` times.

    Both have `seconds` in all: the first and the last stretch are half as long as the others.
    Without `ready` it runs as it is for so long. None where a loop was not seen in that state.
    Where no step is seen, it ends after `start_limit_s`.
    """
    folder.mkdir(parents=True)
    path = os.pathsep.join(filter(None, [str(STOPWATCH), env.get("PYTHONPATH")]))
    env = {**env, "PYTHONPATH": path, "STOPWATCH": str(folder), "PYTHONUNBUFFERED": "1"}
    last_s = seconds / (2 * n_cycles) if ready else seconds
    if ready:
        env |= {"STOPWATCH_READY": str(last_s), "STOPWATCH_CYCLES": str(n_cycles)}
    last = (AGAIN, n_cycles - 1) if ready else (PLAIN, 0)
    began = time.monotonic()
    first: float | None = None
    plain = 0
    with (folder / "output").open("w") as out:
        process = started(command, cwd=cwd, env=env, output=out)
        while process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            if not any(_replaced(file) for file in folder.glob("*.txt")):
                plain = (folder / "output").stat().st_size
            if first is None and any(_reached(file, *last) for file in folder.glob("*.txt")):
                first = now
            if now - began > start_limit_s or (first is not None and now - first > last_s):
                break
        code = process.poll()
        end(process)
    output = (folder / "output").read_text(errors="replace")
    ended = Ended(code=code, output=output, seconds=time.monotonic() - began, plain=plain)
    return *(pair_in(folder) if ready else (timing_in(folder, PLAIN), None)), ended


def _replaced(file: Path) -> bool:
    """Whether batches are kept there, or handed out again."""
    rows = (line.split() for line in file.read_text().splitlines())
    return any(row[1:2] != ["-1"] and row[5:] == ["1"] for row in rows)


def _reached(file: Path, state: int, cycle: int) -> bool:
    """Whether a step of it was asked for."""
    rows = (line.split() for line in file.read_text().splitlines())
    return any(row[1:2] != ["-1"] and row[5:] == [str(10 * cycle + state)] for row in rows)


def started(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: TextIO
) -> subprocess.Popen[bytes]:
    """A process in a group of its own, ended by `end` or `end_all`."""
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdout=output, stderr=output, start_new_session=True
    )
    RUNNING.add(process)
    return process


def end_all() -> None:
    """All that `started` started and `end` has not ended."""
    for process in list(RUNNING):
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started."""
    RUNNING.discard(process)
    for signal_number, wait_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)


def timing_in(folder: Path, state: int, *, least: int = LEAST_STEPS) -> Timing | None:
    """Of the process with the most steps in that state; None where fewer than `least` are left."""
    found = [
        timing
        for file in folder.glob("*.txt")
        if (timing := timing_of(file.read_text(), state, least=least))
    ]
    return max(found, key=lambda timing: timing.n_steps, default=None)


def pair_in(folder: Path) -> tuple[Timing | None, Timing | None]:
    """As it is and with ready batches, of one process where one was seen in both states."""
    texts = [file.read_text() for file in folder.glob("*.txt")]
    each = [(timing_of(text, PLAIN), timing_of(text, READY)) for text in texts]
    both = [(plain, ready) for plain, ready in each if plain is not None and ready is not None]
    apart = timing_in(folder, PLAIN), timing_in(folder, READY)
    return max(both, key=lambda pair: pair[0].n_steps) if both else apart


def timing_of(text: str, state: int, *, least: int = LEAST_STEPS) -> Timing | None:
    """Of one process's lines: the steps in `state` of iterators that train, but the first few."""
    rows: dict[int, list[tuple[tuple[int, int], float, float, int]]] = defaultdict(list)
    for line in text.splitlines()[: None if text.endswith("\n") else -1]:
        iterator, _, asked, got, n_steps, its = line.split()
        # The first line of each has a number of batches there.
        phase = divmod(int(its), 10) if rows[int(iterator)] else (0, int(its))
        rows[int(iterator)].append((phase, float(asked), float(got), int(n_steps)))
    steps: list[tuple[float, float]] = []
    phases: list[tuple[int, int]] = []  # of each: cycle, state
    n_epochs, skip, n_ahead = 0, WARM_UP, 0
    for lines in rows.values():
        if len(lines) < 3 or lines[-1][3] == lines[0][3]:
            continue
        n_epochs += 1
        ((_, n_prefetched), called, *_), events = lines[0], lines[1:]
        if state == PLAIN:
            n_ahead = max(n_ahead, n_prefetched)
            skip = WARM_UP + n_ahead
        for i, (one, after) in enumerate(pairwise(events)):
            known = one[0] == after[0] and one[0][1] in STATES[state]
            if not known or (i == 0 and n_epochs == 1):
                continue
            begin = called if i == 0 else one[1]
            steps.append((after[1] - begin, one[2] - begin))
            phases.append(one[0])
    n_new = len(steps) - n_ahead
    most_ms = 1e3 * sum(step for step, _ in steps) / n_new if n_new > 0 else math.inf
    steps = steps[skip:]
    if len(steps) < least:
        return None
    dry = _first_dry(steps) if n_ahead else None
    if dry is not None and len(steps) - dry >= least:
        steps = steps[dry:]
    all_ms = [1e3 * step for step, _ in steps]
    phases = phases[-len(steps) :]
    edges = [len(all_ms) * i // N_BLOCKS for i in range(N_BLOCKS + 1)]
    blocks = [all_ms[a:b] for a, b in pairwise(edges) if b > a]
    return Timing(
        step_ms=statistics.mean(all_ms),
        wait_ms=1e3 * statistics.mean(wait for _, wait in steps),
        blocks_ms=tuple(statistics.mean(block) for block in blocks),
        n_steps=len(steps),
        n_epochs=n_epochs,
        most_ms=most_ms if n_ahead and dry is None else statistics.mean(all_ms),
        phases_ms=_means(all_ms, phases),
    )


def _means(all_ms: Sequence[float], phases: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    """Of each phase in order; of one between ready batches two: its halves."""
    of_phase: dict[tuple[int, int], list[float]] = defaultdict(list)
    for ms, phase in zip(all_ms, phases, strict=True):
        of_phase[phase].append(ms)
    parts: list[Sequence[float]] = []
    for phase in sorted(of_phase):
        values = of_phase[phase]
        half = len(values) // 2
        halved = phase[1] == AGAIN and phase != max(of_phase) and half
        parts += [values[:half], values[half:]] if halved else [values]
    return tuple(statistics.mean(part) for part in parts)


def _first_dry(steps: Sequence[tuple[float, float]]) -> int | None:
    """Of (step, wait): the first behind a queue that ran empty; None where it never does."""
    late = steps[len(steps) // 2 :]
    if sum(wait for _, wait in late) < STARVED * sum(step for step, _ in late):
        return None
    mean = sum(step for step, _ in steps) / len(steps)
    return next((i + 1 for i, (_, wait) in enumerate(steps) if wait > DRY * mean), None)
