"""Differences of an ablation -> what may be claimed of them: no more than was seen to carry it.

Few rounds on a machine that others use too differ by a tenth of the step and more by chance. What
the loop waits is known to a fraction of that. So a difference becomes the loader's, or the copies',
as far as a mechanism was seen (`mechanisms`); what is beyond is noise, and a negative difference is
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from loaderdoctor.attribution.mechanisms import total
from loaderdoctor.estimate import Estimate, mean
from loaderdoctor.facts import UNSTEADY_OVERHEAD
from loaderdoctor.facts.loop import AblationFacts, Mechanisms
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.instrument.wire.records import TransferRecord

# Handing one tensor over costs the host its call, besides what the device copies: 20 µs each in
# many small copies on an H200 (128 of them, 2.5 ms). More than twice that, for slower hosts.
CALL_MS = 0.05
# Copied bytes that differ by more from those of the loop's tensors: converted on the way, which
# free copies spare the loop too and no copy shows.
SAME_BYTES = 0.1


def claimed(
    ablation: AblationFacts | None,
    trace: TraceFacts | None = None,
    transfers: Sequence[TransferRecord] = (),
) -> AblationFacts | None:
    """The ablation with its parts bounded: within 0…step, by what was seen, by the idle device.

    Steps without a part are the plain step less the claim. `raw` holds the ablation as measured.
    Parts that have no interval stay as they are: they decide nothing.
    """
    if ablation is None or ablation.raw is not None:
        return ablation
    step, found, copies = ablation.plain_ms, ablation.input_ms, ablation.copy_ms
    seen = ablation.mechanisms
    theirs = ablation.neighbours_ms and not (seen is not None and seen.parted)
    contended = bool(ablation.contended_ms or theirs)
    if found is not None and found.bounded:
        difference = found
        found = by_mechanisms(difference, ablation.mechanisms, contended=contended)
        if ablation.neighbours_ms and ablation.mechanisms is not None:
            found = _at_least(found, ablation.mechanisms, difference)
            carried = _carried(ablation.mechanisms)
            # What is above may be carried by what else was recorded.
            above = _others(ablation.mechanisms) is not None and found.value >= carried.value
            if contended and ablation.mechanisms.exposed and not above:
                found = _nearer(found, carried)
        found = within(found, step)
    most = _copies_ms(trace, transfers)
    if copies is not None and copies.bounded:
        copies = within(_at_most(copies, most), step)
    found, copies = _within_idle(found, copies, step, trace, copied_alone=most is not None)
    no_input, no_copy = ablation.no_input_ms, ablation.no_copy_ms
    if found != ablation.input_ms:
        no_input = _rest(step, found, no_input)
    if no_input is not None and (found, copies) != (ablation.input_ms, ablation.copy_ms):
        no_copy = _rest(no_input, copies, no_copy)
    if found is not None and ablation.contended_ms:
        # What nothing was seen to carry lowers the low end too, and is not the others' doing.
        contended_ms = min(ablation.contended_ms, max(0.0, found.value - found.low))
        ablation = replace(ablation, contended_ms=contended_ms or None)
    return replace(
        ablation,
        input_ms=found,
        copy_ms=copies,
        no_input_ms=no_input,
        no_copy_ms=no_copy,
        raw=ablation,
    )


def within(part: Estimate, step: Estimate) -> Estimate:
    """A cost can't be negative, nor more than the step."""

    def inside(value: float) -> float:
        return min(max(value, 0.0), step.value)

    return Estimate(
        value=inside(part.value), low=inside(part.low), high=inside(part.high), n=part.n
    )


def by_mechanisms(
    difference: Estimate, seen: Mechanisms | None, *, contended: bool = False
) -> Estimate:
    """The difference as far as mechanisms carry it; itself where no fetch was recorded.

    Where one was not recorded, no more is shown than what those that were carry: the claim's low
    end is no higher than that. On an H200 cuDNN's autotuner, and a pause between its runs, took
    1,330 of 1,749 ms a step of a loop that waited 0.4.

    One counts as seen where its own interval is above zero. Of those that are not, the interval
    still says how much they might carry: the claim's upper end allows for it.

    Where every wait is the step's, the cost lies between the wait and all that is carried, which
    is known as well as the difference, or better: the two are weighed by their noise. What other
    programs may have made it wait (`contended`, and not `parted` from it) is no such floor.
    """
    if seen is None or seen.wait_ms is None:
        return difference
    wait, others = seen.wait_ms, _others(seen)
    if others is None or not wait.bounded:
        return _of_those_recorded(difference, seen, contended=contended)
    carried = total([wait, *(x for x in others if x.low > 0.0)])
    most_ms = carried.high + sum(max(0.0, x.high) for x in others if x.low <= 0.0)
    limit = replace(carried, high=most_ms)
    if not seen.exposed or contended:
        return _at_most(difference, limit)
    if difference.high <= 0.0:  # impossible: the rounds say nothing
        return wait
    if difference.low >= most_ms:
        return limit
    if denied(difference, wait):
        return replace(difference, value=difference.high)
    if difference.high <= wait.low:
        return _between(difference, wait)
    nearest = wait if difference.value < wait.value else carried
    inside = wait.value <= difference.value <= carried.value
    low = max(wait.low, min(difference.low, carried.low))
    high = min(difference.high, most_ms)
    value = difference.value if inside else _weighed(difference, nearest)
    value = min(max(value, low), high, carried.high)
    return replace(difference, value=value, low=min(low, value), high=high)


def _of_those_recorded(difference: Estimate, seen: Mechanisms, *, contended: bool) -> Estimate:
    """As after one round, of which nothing has an interval but what every plain window told."""
    carried = _carried(seen)
    if not seen.exposed:
        difference = _at_most(difference, _by_work(seen, carried))
    elif not contended:
        difference = _nearer(_waited(difference, carried), carried)
    # Its own interval is no matter here: in the very windows that differ it was this much, and by
    # how much they differ at least the difference's interval tells.
    return replace(difference, low=min(difference.low, carried.value))


def _carried(seen: Mechanisms) -> Estimate:
    """What the loop was seen to wait, if that was recorded, and its page faults."""
    mapping = Estimate.around(seen.mapping_ms, 0.0, n=1)
    return mapping if seen.wait_ms is None else total([seen.wait_ms, mapping])


# All of the loader's work: once in the run queue, once as CPU time of the loop, twice for the
# interpreter's lock (`mechanisms.LOST_PER_HELD`).
MOST_PER_WORK = 4.0


def _by_work(seen: Mechanisms, carried: Estimate) -> Estimate | None:
    """The most that a loader of so much work can cost; None where that was not recorded."""
    if seen.work_ms is None or not seen.work_ms.bounded or not carried.bounded:
        return None
    return total([carried, seen.work_ms.scaled(MOST_PER_WORK)])


def _nearer(difference: Estimate, carried: Estimate) -> Estimate:
    """Nearer to what was seen, where the difference is no larger than that for certain.

    The interval stays: what else may carry it was not measured.
    """
    if not carried.bounded or not difference.low <= carried.value <= difference.high:
        return difference
    value = _weighed(difference, carried)
    return replace(difference, value=min(max(value, difference.low), difference.high))


# Two measures of one quantity may differ by this many times the margin of the noisier one. Where a
# difference is further from the wait, the loop does not wait for what is fetched: threads of the
# user's own that fetch ahead showed 5 ± 1 of 14.8 ms, 15 ± 1 of 35.6, 0.4 ± 0.7 of 10.9.
OF_ONE = 2.0


def _between(difference: Estimate, wait: Estimate) -> Estimate:
    """Two intervals that miss each other by noise: between them.

    Beside busy programs two rounds said -3.8 ± 5.1 ms of a loop that waits 3.5 ± 1.4 and reads for
    1.6 at least.
    """
    value = min(max(_weighed(difference, wait), difference.high), wait.low)
    return replace(difference, value=value, high=max(difference.high, wait.low))


def denied(difference: Estimate, wait: Estimate) -> bool:
    """Whether rounds show a cost, or none, that is below the wait by more than their noise.

    One that is above zero for certain stands: of 25 ± 1 ms next to a neighbour rounds said 20.9 ±
    2, and the loader cost 21.1.
    """
    if difference.high > wait.low:
        return False
    return difference.low > 0.0 or difference.value + OF_ONE * difference.margin < wait.low


def _waited(difference: Estimate, carried: Estimate) -> Estimate:
    """No less than was seen, where the difference allows for that; else between the two."""
    if not carried.bounded or denied(difference, carried):
        return difference
    if difference.high <= carried.low:
        return _between(difference, carried)
    low = max(difference.low, carried.low)
    return replace(difference, value=max(difference.value, low), low=low)


def _others(seen: Mechanisms) -> tuple[Estimate, ...] | None:
    """Run queue, CPU time and interpreter: no more than the loader's own work can cause of it.

    Page faults are measured by themselves: the CPU time grew by theirs at least. None where one of
    these was not recorded.
    """
    parts = (seen.work_ms, seen.run_queue_ms, seen.cpu_ms, seen.interpreter_ms)
    known = [x for x in parts if x is not None and x.bounded]
    if len(known) < len(parts):
        return None
    work, queued, ran, held = known
    mapping = Estimate.around(seen.mapping_ms, 0.0, n=1)
    ran = _at_most(ran, total([work, mapping]))
    if ran.low < mapping.low:
        ran = replace(mapping, high=max(mapping.high, ran.high))
    return _at_most(queued, work), ran, held


def _at_most(part: Estimate, limit: Estimate | None) -> Estimate:
    if limit is None:
        return part
    value = min(part.value, limit.value)
    low, high = min(part.low, limit.low, value), max(value, min(part.high, limit.high))
    return replace(part, value=value, low=low, high=high)


def _weighed(a: Estimate, b: Estimate) -> float:
    """Mean of two measures of one quantity, by inverse variance."""
    if b.margin <= 0.0 or a.margin <= 0.0:
        return b.value if b.margin <= a.margin else a.value
    ratio = a.margin / b.margin  # not the squares themselves, which overflow
    weight = 1.0 / (1.0 + ratio * ratio)
    return weight * a.value + (1.0 - weight) * b.value


def _at_least(part: Estimate, seen: Mechanisms, difference: Estimate) -> Estimate:
    """Not below the CPU time of receiving batches, where every wait is the step's.

    Nor below the start of each epoch, which no ready batch has: the difference is as much by
    how it is made.
    """
    if seen.got_ms is None or not seen.exposed:
        return part
    own = seen.got_ms.plus(seen.boundary_ms)
    if 0.0 < difference.high < own.value:
        return replace(part, value=max(part.value, difference.high))
    value = max(part.value, own.value)
    return replace(
        part, value=value, low=max(part.low, min(own.low, value)), high=max(part.high, value)
    )


def _copies_ms(trace: TraceFacts | None, transfers: Sequence[TransferRecord]) -> Estimate | None:
    """The most that the copies in a trace can cost a step; None where nothing tells.

    Each runs on the device, holds the host in its call, and has one. A loop that waits for a copy
    also loses its lead over the device, by which all of the host's exposed work may count.
    """
    if trace is None or not trace.has_accelerator or not trace.copies:
        return None
    n_bytes, sent = sum(t.n_bytes for t in transfers), sum(c.bytes_per_step for c in trace.copies)
    if n_bytes and abs(sent - n_bytes) > SAME_BYTES * n_bytes:
        return None
    most_ms = sum(
        c.busy_ms_per_step + c.host_blocked_ms_per_step + CALL_MS * c.n_per_step
        for c in trace.copies
    )
    if any(c.host_blocked_ms_per_step > CALL_MS * c.n_per_step for c in trace.copies):
        most_ms += trace.host.exposed_ms
    return Estimate.around(most_ms, 0.0, n=1)


def _within_idle(
    found: Estimate | None,
    copies: Estimate | None,
    step: Estimate,
    trace: TraceFacts | None,
    *,
    copied_alone: bool,
) -> tuple[Estimate | None, Estimate | None]:
    """Input and copies no larger than the time in which no kernel runs, but for what is shown.

    Kernels take as long with the profiler as without. What the rounds show of a loader by their
    intervals stands all the same: it may compute on the device, too. Copies do not, where nothing
    else falls away with them (`copied_alone`): of loops of 21 and 24 ms rounds showed 16 and 12 %
    beside another process on an H200, where a few KB cost 3 and 4 % alone. Of steps that differ
    their spread is allowed for. Where it is seen that the GPU serves other processes as well,
    nothing is shown: a copy that gives up a turn costs what they make of it.

    Where recorded steps were clearly the quicker (`_slower`), others had no turn in them, and the
    rest of the time kernels took as much longer as the steps: of 32 ms, with recording 23.6 of
    which kernels ran 22.8, rounds showed 19 % and separate runs 3. Of copies no more is shown then
    than is exposed in the trace.
    """
    if trace is None or not trace.has_accelerator or not trace.kernels.busy_ms:
        return found, copies
    busy_ms = trace.kernels.busy_ms - (trace.kernels.communication_ms or 0.0)
    busy_ms += trace.kernels.held_up_ms

    slower = _slower(step, found, trace) if copied_alone else 1.0

    def bounded(part: Estimate | None, idle: Estimate, beyond_ms: float) -> Estimate | None:
        if part is None or not part.bounded:
            return part
        limit = replace(idle, value=max(idle.low, min(part.low, idle.high + beyond_ms)))
        least = _at_most(part, limit)
        return replace(least, low=min(part.low, least.value))

    beyond_ms = _spread_ms(trace) if copied_alone else math.inf
    copies = bounded(copies, _idle(step, busy_ms, slower), beyond_ms)
    if copies is not None and copies.bounded and (trace.shared_gpu or slower > 1.0):
        exposed_ms = 0.0 if trace.shared_gpu else (trace.shares.copy or 0.0) * step.value
        copies = replace(copies, low=min(copies.low, exposed_ms))
    return bounded(found, _idle(step, busy_ms), math.inf), copies


def _idle(step: Estimate, busy_ms: float, slower: float = 1.0) -> Estimate:
    """Of a step what kernels leave that take `slower` times `busy_ms`; as low as its value."""
    idle_ms = max(0.0, step.value - slower * busy_ms)
    high_ms = idle_ms
    if step.bounded and slower > 1.0:  # steps that are longer, kernels that are
        high_ms *= step.high / step.value
    elif step.bounded:
        high_ms = max(0.0, step.high - busy_ms)
    return Estimate(value=idle_ms, low=idle_ms, high=high_ms, n=step.n)


def _slower(step: Estimate, found: Estimate | None, trace: TraceFacts) -> float:
    """How much longer steps took without the profiler, but for what the loader costs.

    A factor; 1 where they did not clearly (`UNSTEADY_OVERHEAD`).
    """
    recorded_ms = trace.wall_ms * (1.0 - (trace.shares.input or 0.0))
    computed_ms = step.value - (found.value if found is not None else 0.0)
    if recorded_ms <= 0.0 or recorded_ms >= UNSTEADY_OVERHEAD * computed_ms:
        return 1.0
    return computed_ms / recorded_ms


def _spread_ms(trace: TraceFacts) -> float:
    """How far the mean of the trace's steps may be from that of others, by how they differ."""
    spread = mean(trace.step_walls_ms) if len(trace.step_walls_ms) > 1 else None
    return spread.margin if spread is not None and spread.bounded else 0.0


def _rest(step: Estimate, part: Estimate | None, measured: Estimate | None) -> Estimate | None:
    """The step without a claimed part; as measured where the claim has no interval."""
    if measured is None or part is None or not part.bounded:
        return measured
    below = math.hypot(step.value - step.low, part.high - part.value)
    above = math.hypot(step.high - step.value, part.value - part.low)
    value = max(0.0, step.value - part.value)
    return Estimate(value=value, low=max(0.0, value - below), high=value + above, n=measured.n)
