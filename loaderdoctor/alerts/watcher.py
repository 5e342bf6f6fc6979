"""Follows one process of a run beat by beat, and says what changed, with its cause.

Pure: beats and surroundings in, alerts out. A change is held back some seconds, until there has
been a look around that lies behind it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

from loaderdoctor import format as fmt
from loaderdoctor.alerts import OTHER_CPUS, PRESSURE, TO_MOVE, Alert, Cause, Stretch, cause_of
from loaderdoctor.alerts.change_points import Change, DriftWatch, Effect, LevelWatch
from loaderdoctor.alerts.watches import PauseWatch, Recurrence, RecurrenceWatch, SeenStall
from loaderdoctor.instrument.wire.measured import Block, Stall, Surroundings
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.units import NS_PER_MS, NS_PER_S

# Less is a matter of taste on most machines: two runs of one loop differ by 3 to 5 %.
PACE: Final = Effect(share=0.10, least=0.0)
DRIFT: Final = Effect(share=0.15, least=0.0)
INPUT: Final = Effect(share=0.0, least=0.08)
MATTERS: Final = 0.05  # of the step, in waits: as a diagnosis has it
BOUND: Final = 0.20
# Changes that begin this close are one, of the pace and of the input share alike; but a pace that
# changes and comes back is two.
SAME_S: Final = 30.0
# For the cause: seconds of beats on each side of a change, and the least behind it.
BEFORE_S: Final = 60.0
BEHIND_S: Final = 3.0
PATIENCE_S: Final = 10.0  # for a look around that lies behind it
KEPT_BEATS: Final = 300
KEPT_BLOCKS: Final = 256
# Collections: this share of a minute, and each of them long enough to be felt.
GC_WINDOW_S: Final = 60.0
GC_SHARE: Final = 0.02
GC_LONG_NS: Final = 50_000_000
GC_MIN: Final = 3
STALL_SHARE: Final = 0.02  # of the time, in stalls that recur
# What Linux gives one program before another's turn: 3 to 24 ms on 2 to 64 CPUs. Of two cores that
# others used by 1.2, steps of 0.4 ms took 12 ms longer every 16 ms, in waits too: workers wait so.
TURN_MS: Final = 30.0
FULL: Final = 0.9  # of the CPUs kept busy: fewer, and nobody waits for a turn
ROUNDS: Final = 1.5  # times what a worker takes for a batch: no longer period is its rhythm


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    kind: Literal["pace", "drift", "input"]
    change: Change
    at_ns: int
    step: int
    found_ns: int

    def is_one_with(self, told: _Pending) -> bool:
        """Whether that one, which was told, has said this."""
        if abs(self.at_ns - told.at_ns) >= SAME_S * NS_PER_S:
            return False
        same_series = (self.kind == "input") == (told.kind == "input")
        return not same_series or self.change.rises == told.change.rises


class RankWatcher:
    def __init__(self) -> None:
        self._pace, self._drift = LevelWatch(PACE), DriftWatch(DRIFT)
        self._input = LevelWatch(INPUT, floor_share=0.0, floor=0.01)
        self._stalls, self._pauses = RecurrenceWatch(), PauseWatch()
        self._beats: deque[Beat] = deque(maxlen=KEPT_BEATS)
        self._looks: deque[Surroundings] = deque(maxlen=KEPT_BEATS)
        # (block number, its end, its step), for when a change began.
        self._blocks: deque[tuple[int, int, int]] = deque(maxlen=KEPT_BLOCKS)
        self._n_blocks = self._n_shares = 0
        self._shares: deque[tuple[int, int, int]] = deque(maxlen=KEPT_BLOCKS)
        self._pending: list[_Pending] = []
        self._told: deque[_Pending] = deque(maxlen=16)
        self._gc_told = self._bound_told = False
        self._median_ms: float | None = None  # of the last block
        self._offset_s = 0.0  # from CLOCK_MONOTONIC to seconds since the epoch

    def beat(self, beat: Beat, input_share: float | None) -> list[Alert]:
        """The next stretch, and the part of it that waiting took; what is to be told by now."""
        self._offset_s = beat.at_s - beat.end_ns / NS_PER_S
        self._beats.append(beat)
        for block in beat.blocks:
            self._add_block(block, beat)
        if beat.dry is not None:
            self._add_share(input_share, beat.end_ns, beat.n_steps)
        found = [a for stall in beat.stalls if (a := self._add_stall(stall)) is not None]
        found += self._collections(beat) + self._died(beat) + self._bound(beat)
        found += self._pauses.beat(beat)
        return found + self._settled(beat.end_ns)

    def look(self, look: Surroundings) -> list[Alert]:
        self._looks.append(look)
        return self._settled(look.end_ns)

    # ------------------------------------------------------------ levels

    def _add_block(self, block: Block, beat: Beat) -> None:
        self._n_blocks += 1
        self._blocks.append((self._n_blocks, block.end_ns, block.step))
        self._median_ms = block.median_ns / NS_PER_MS
        mean_ms = block.total_ns / block.n / NS_PER_MS
        change, drift = self._pace.add(mean_ms), self._drift.add(mean_ms)
        if change is not None:
            self._drift.begin_again()
            self._hold("pace", change, self._blocks, block.end_ns)
        elif drift is not None:
            self._hold("drift", drift, self._blocks, block.end_ns)
        if block.wait_ns is not None and beat.dry is None:
            self._add_share(block.wait_ns / max(1, block.total_ns), block.end_ns, block.step)

    def _add_share(self, share: float | None, end_ns: int, step: int) -> None:
        if share is None:
            return
        self._n_shares += 1
        self._shares.append((self._n_shares, end_ns, step))
        change = self._input.add(share)
        if change is not None:
            self._hold("input", change, self._shares, end_ns)

    def _hold(
        self,
        kind: Literal["pace", "drift", "input"],
        change: Change,
        blocks: deque[tuple[int, int, int]],
        found_ns: int,
    ) -> None:
        # The change lies between the block before it and its own.
        began = next((b for b in blocks if b[0] >= change.at - 1), blocks[-1])
        self._pending.append(
            _Pending(kind=kind, change=change, at_ns=began[1], step=began[2], found_ns=found_ns)
        )

    def _settled(self, now_ns: int) -> list[Alert]:
        """Changes that have been looked behind, or waited for long enough."""
        told: list[Alert] = []
        waiting: list[_Pending] = []
        for one in sorted(self._pending, key=lambda p: p.kind, reverse=True):  # pace, input, drift
            behind = any(x.end_ns - x.took_s * NS_PER_S >= one.at_ns for x in self._looks)
            late = now_ns - one.found_ns > PATIENCE_S * NS_PER_S
            if not late and not (behind and now_ns - one.at_ns > BEHIND_S * NS_PER_S):
                waiting.append(one)
                continue
            if any(one.is_one_with(other) for other in self._told):
                continue
            alert = self._judge(one)
            if alert is not None:
                self._told.append(one)
                told.append(alert)
        self._pending = waiting
        return told

    def _judge(self, one: _Pending) -> Alert | None:
        before, after = self._around(one.at_ns)
        waits = before.wait_ms, after.wait_ms
        steps = before.step_ms, after.step_ms
        at_s = one.at_ns / NS_PER_S + self._offset_s
        share = _share(after)
        old, new = one.change.before, one.change.after
        if one.kind == "input":
            if max(old, new) < MATTERS:
                return None
            if new > old:
                cause = cause_of(before, after, by_input=True)
                text = (
                    f"Since step {one.step:,} waiting for batches takes {fmt.share(new)} of the "
                    f"step, {fmt.share(old)} before"
                )
                return _alert("input-begins", at_s, one.step, text, cause)
            text = (
                f"Since step {one.step:,} waiting for batches takes only {fmt.share(new)} of the "
                f"step, {fmt.share(old)} before."
            )
            return Alert(kind="input-ends", at_s=at_s, step=one.step, text=text)
        if new < old:
            ends = waits[0] is not None and waits[1] is not None and _mostly(waits, old - new, -1)
            text = f"Steps are faster since step {one.step:,}: {fmt.ms(new)}, {fmt.ms(old)} before."
            if ends:
                text = f"{text} Less waiting for batches makes most of it."
            return Alert(
                kind="input-ends" if ends else "faster", at_s=at_s, step=one.step, text=text
            )
        by_input = None not in (*waits, *steps) and _mostly(waits, new - old, 1)
        cause = cause_of(before, after, by_input=by_input)
        text = f"Steps take {fmt.ms(new)} since step {one.step:,}, {fmt.ms(old)} before"
        if by_input and share is not None and share >= MATTERS:
            text = f"{text}, and waiting for batches makes most of the difference"
            return _alert("input-begins", at_s, one.step, text, cause)
        if one.kind == "drift":
            text = f"Steps have crept from {fmt.ms(old)} to {fmt.ms(new)} by step {one.step:,}"
        return _alert("drift" if one.kind == "drift" else "slower", at_s, one.step, text, cause)

    def _around(self, at_ns: int) -> tuple[Stretch, Stretch]:
        # What came before the change before is another loop.
        changed_ns = max((x.at_ns for x in self._told if x.at_ns < at_ns), default=0)
        since_ns = max(at_ns - BEFORE_S * NS_PER_S, changed_ns)
        return (
            Stretch(
                beats=[b for b in self._beats if since_ns <= b.start_ns and b.end_ns <= at_ns],
                looks=[x for x in self._looks if since_ns <= x.end_ns <= at_ns],
            ),
            Stretch(
                beats=[b for b in self._beats if b.start_ns >= at_ns] or [self._beats[-1]],
                looks=[x for x in self._looks if x.end_ns - x.took_s * NS_PER_S >= at_ns],
            ),
        )

    def _bound(self, beat: Beat) -> list[Alert]:
        """Said once of a loader that has cost a good part from the beginning."""
        level = self._input.level
        if self._bound_told or level is None:
            return []
        self._bound_told = True
        if level < BOUND:
            return []
        text = (
            f"Waiting for batches takes {fmt.share(level)} of the step since the beginning; "
            "`loaderdoctor diagnose` says why, and what helps."
        )
        return [Alert.at(beat, "input-bound", text)]

    # ------------------------------------------------------------ stalls

    def _add_stall(self, stall: Stall) -> Alert | None:
        usual_ms = self._pace.level or self._median_ms
        if usual_ms is None:
            return None
        excess_ms = max(0.0, stall.took_ns / NS_PER_MS - usual_ms)
        if not excess_ms:
            return None
        recurrence = self._stalls.add(
            SeenStall(
                step=stall.step,
                at_s=stall.at_ns / NS_PER_S + self._offset_s,
                excess_ms=excess_ms,
                wait_share=min(1.0, stall.wait_ns / NS_PER_MS / excess_ms)
                if stall.wait_ns is not None
                else None,
                gc_share=min(1.0, stall.gc_ns / NS_PER_MS / excess_ms),
            )
        )
        if recurrence is None or recurrence.share < STALL_SHARE:
            return None
        if recurrence.gc_share > 0.5 or self._is_the_pools_rhythm(recurrence):
            return None  # collections are told as such
        text, cause, advice = _stall_words(recurrence, self._others_take_turns(recurrence))
        return Alert(
            kind="stalls",
            at_s=stall.at_ns / NS_PER_S + self._offset_s,
            step=recurrence.first_step,
            text=text,
            cause=cause,
            advice=advice,
        )

    def _others_take_turns(self, recurrence: Recurrence) -> float | None:
        """CPUs that others keep busy, where stalls are as short as turns and CPUs are seen short.

        The scheduler knows no steps: a constant number of them between stalls is the program's.
        """
        around = Stretch(beats=(), looks=list(self._looks)[-4:])
        others = around.look(lambda x: x.other_cpus)
        if recurrence.unit == "steps" or recurrence.excess_ms > TURN_MS:
            return None
        if others is None or others <= OTHER_CPUS:
            return None
        own, n_cpus = around.look(lambda x: x.own_cpus), around.look(lambda x: x.n_cpus)
        full = own is not None and n_cpus is not None and own + others >= FULL * n_cpus
        pressed = (around.look(lambda x: x.cpu_pressure) or 0.0) >= PRESSURE
        return others if full or pressed else None

    def _is_the_pools_rhythm(self, recurrence: Recurrence) -> bool:
        """Whether the loop waits once a round of its workers, all of whom give at once.

        That is a loader too slow for the step, whatever the batch: input, and no stall.
        """
        workers = self._beats[-1].workers
        if workers is None or not workers.n_batches or (recurrence.wait_share or 0.0) <= 0.5:
            return False
        if recurrence.unit == "steps":
            return recurrence.period <= workers.n_alive
        return recurrence.period <= ROUNDS * workers.make_ns / workers.n_batches / NS_PER_S

    def _collections(self, beat: Beat) -> list[Alert]:
        since = beat.end_ns - GC_WINDOW_S * NS_PER_S
        late = [b for b in self._beats if b.end_ns > since]
        took_ns = late[-1].end_ns - late[0].start_ns
        total = sum(b.collections.total_ns for b in late)
        n_long = sum(b.collections.longest_ns >= GC_LONG_NS for b in late)
        share = total / max(took_ns, 10 * NS_PER_S)
        if self._gc_told or n_long < GC_MIN or share < GC_SHARE:
            return []
        self._gc_told = True
        longest_ms = max(b.collections.longest_ns for b in late) / NS_PER_MS
        text = (
            f"Garbage collections take up to {fmt.ms(longest_ms)} each, {fmt.share(share)} of the "
            "last minute."
        )
        advice = (
            "Call gc.freeze() after the first step, or gc.disable() and gc.collect() at the end of "
            "each epoch."
        )
        return [Alert.at(beat, "collections", text, cause="collections", advice=advice)]

    def _died(self, beat: Beat) -> list[Alert]:
        n = beat.workers.n_died if beat.workers is not None else 0
        if not n:
            return []
        text = f"{fmt.count(n, 'DataLoader worker')} died without a word by step {beat.n_steps:,}."
        advice = "Look in `dmesg` for the out-of-memory killer."
        return [Alert.at(beat, "workers-died", text, cause="workers-gone", advice=advice)]


def _alert(
    kind: Literal["input-begins", "slower", "drift"],
    at_s: float,
    step: int,
    text: str,
    cause: Cause | None,
) -> Alert:
    if cause is None:
        text = f"{text}. What changed with it was not seen."
        return Alert(kind=kind, at_s=at_s, step=step, text=text)
    return Alert(
        kind=kind,
        at_s=at_s,
        step=step,
        text=f"{text}: {cause.text}.",
        cause=cause.kind,
        advice=cause.advice,
    )


def _mostly(waits: tuple[float | None, float | None], by_ms: float, sign: int) -> bool:
    """Whether the waits' change carries most of a change of the step by `by_ms`."""
    before, after = waits
    return before is not None and after is not None and sign * (after - before) >= 0.5 * abs(by_ms)


def _share(stretch: Stretch) -> float | None:
    step, wait = stretch.step_ms, stretch.wait_ms
    return wait / step if step and wait is not None else None


def _stall_words(one: Recurrence, other_cpus: float | None) -> tuple[str, str | None, str]:
    """Text, cause and advice. `other_cpus`: others take turns with the run, so many."""
    every = f"{one.period:,.0f} steps" if one.unit == "steps" else fmt.seconds(one.period)
    text = (
        f"Every {every} a step takes {fmt.ms(one.excess_ms)} longer, {fmt.share(one.share)} of the "
        f"time since step {one.first_step:,}"
    )
    if other_cpus is not None:
        return (
            f"{text}: other programs use {other_cpus:.1f} CPUs of this run's, by turns with it.",
            "other-programs",
            TO_MOVE,
        )
    if one.wait_share is not None and one.wait_share > 0.5:
        return (
            f"{text}: it waits for its batch.",
            "late-batch",
            "One batch in so many is slow to make: a slow shard, a file far away, a "
            "large sample. More batches ahead (prefetch_factor) would hide it.",
        )
    return (
        f"{text}, and not for a batch.",
        None,
        "Look for what the loop does so often: logging, saving in a way that is not torch.save, "
        "a synchronisation.",
    )
