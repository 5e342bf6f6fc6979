"""The course of a run, as a generator that is resumed at each step boundary on the training thread.

It lets the loop settle, reports what was observed, then pauses the loop inside the hook until
the command asks for windows, measures them and answers. `yield` means: run one more step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from time import perf_counter_ns
from typing import TYPE_CHECKING

import msgspec

from loaderdoctor.instrument.session.environment import environment, n_devices
from loaderdoctor.instrument.session.messages import Messages
from loaderdoctor.instrument.session.ranks import process_group
from loaderdoctor.instrument.session.roles import ACCUMULATES_BELOW
from loaderdoctor.instrument.session.session import Driver, Session
from loaderdoctor.instrument.session.step_clock import DeviceMarks, StepClock
from loaderdoctor.instrument.session.windows import Windows
from loaderdoctor.instrument.wire.protocol import Begin, Observed, Stop
from loaderdoctor.instrument.wire.records import ComputeRecord, TransferRecord
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    from loaderdoctor.instrument.session.compute_watch import ComputeWatch
    from loaderdoctor.instrument.session.transfer import TransferObserver

# Steps timed before the loop counts as warm. The steps that decided the roles came before them
# and are thrown away: the first three or so pay for caches, cuDNN and the allocator.
N_SETTLED = 8
SLOW_AFTER_S = 10.0
N_SETTLED_SLOW = 1
# Accumulation shows once two optimizer steps were seen; beyond so many batches nobody waits for it.
MAX_SETTLING = 64
# Steps without one that is free of other loaders' fetches: then every step has them.
ACCEPT_FOREIGN_AFTER = 16
N_TRANSFER_STEPS = 3

Settling = Generator[
    None, int, tuple[tuple[int, ...], tuple[TransferRecord, ...], ComputeRecord | None]
]


def drive(session: Session, now: int) -> Driver:
    """The whole course, from the first boundary after the roles are known."""
    definition = session.definition
    assert definition is not None  # boundaries exist once the step is defined
    marks = DeviceMarks(session.device) if session.device is not None else None
    messages = Messages(session)
    step_ns, transfers, compute = yield from _settle(session, messages, now)
    rate = _optimizer_rate(session)
    session.optimizer_marks = None
    accumulation = round(1 / rate) if rate is not None and 0 < rate < ACCUMULATES_BELOW else 1
    windows = Windows(
        session,
        messages,
        definition,
        marks=marks,
        transfers=transfers,
        accumulation=accumulation,
        step_ns=sum(step_ns) // len(step_ns) if step_ns else 0,
    )
    _check_safety(session)
    device, group = session.device, process_group()
    session.send(
        Observed(
            definition=definition.text,
            step_ns=step_ns,
            loaders=session.registry.records(),
            transfers=transfers,
            boundaries=tuple(session.boundaries),
            n_steps_so_far=session.n_steps,
            optimizer_steps_per_step=rate,
            device=str(device) if device is not None else None,
            batches_per_cycle=windows.batches_per_cycle(None),
            environment=environment(device.index or 0 if device is not None else None),
            compute=compute,
            n_devices=n_devices(device),
            group_size=group[1] if group is not None else None,
        )
    )
    while True:
        began = perf_counter_ns()
        session.workers.flush()  # the command reads the records while the loop is paused
        message = yield from messages.next()
        if not session.group:  # which steps on meanwhile
            windows.paused_ns += perf_counter_ns() - began
        if message is None or isinstance(message, Begin):
            return
        if isinstance(message, Stop):
            if message.to_end:
                return
            session.stop()
            return
        for request in message.requests:
            yield from windows.measure(request)


def _settle(session: Session, messages: Messages, now: int) -> Settling:
    """Run until the loop is warm: host times of steps, the loop's transfers, how it computes."""
    session.progress("watching the first steps")
    observer = _transfer_observer(session)
    watch = _compute_watch(session)
    try:
        return (yield from _watch_steps(session, messages, now, observer, watch))
    finally:
        if watch is not None:
            watch.remove()


def _watch_steps(
    session: Session,
    messages: Messages,
    now: int,
    observer: TransferObserver | None,
    watch: ComputeWatch | None,
) -> Settling:
    # Host times only: the step clock of the device begins with the first window.
    window = session.window
    clock = window.clock = StepClock(None)
    clock.start(now, fresh=session.at_fresh_feed)
    n = 0
    transfers: tuple[TransferRecord, ...] = ()
    compute: ComputeRecord | None = None
    while True:
        now = yield
        n += 1
        clock.mark(now)
        messages.poll(now)
        slow = now - session.roles.first_ns > SLOW_AFTER_S * NS_PER_S
        if observer is not None:
            if n < N_TRANSFER_STEPS:
                observer.begin_step()
            else:
                observer.remove()
                window.watch_batch = window.begin_thread_step = None
                transfers = observer.records()
                observer = None
        if watch is not None and (watch.stepped() or slow):
            compute, watch = _seen(session, watch), None
        if clock.n_marks_since_step >= ACCEPT_FOREIGN_AFTER:
            clock.accept_foreign()
        enough = observer is None and clock.n_steps >= (N_SETTLED_SLOW if slow else N_SETTLED)
        if enough and (slow or n >= MAX_SETTLING or _accumulation_known(session)):
            break
    session.close_window()
    return clock.finish().host_ns, transfers, compute


def _transfer_observer(session: Session) -> TransferObserver | None:
    if session.device is None:
        return None
    from loaderdoctor.instrument.session.transfer import TransferObserver

    observer = TransferObserver()
    observer.install()
    observer.begin_step()
    session.window.watch_batch = observer.note_batch
    session.window.begin_thread_step = observer.begin_step
    return observer


def _compute_watch(session: Session) -> ComputeWatch | None:
    from loaderdoctor.instrument.session.compute_watch import ComputeWatch

    watch = ComputeWatch(session.device, acting=lambda: session.live)
    try:
        if watch.install():
            return watch
    except Exception as error:  # leans on torch's own classes
        watch.remove()
        session.note("compute-not-watched", f"{type(error).__name__}: {error}")
    return None


def _seen(session: Session, watch: ComputeWatch) -> ComputeRecord | None:
    watch.remove()
    try:
        return watch.record()
    except Exception as error:
        session.note("compute-not-watched", f"{type(error).__name__}: {error}")
        return None


def _accumulation_known(session: Session) -> bool:
    marks = session.optimizer_marks or []
    if not any(w.optimizer is not None for w in session.roles.work.values()):
        return True
    counts = Counter(optimizer for optimizer, _ in marks)
    return any(n >= 2 for n in counts.values())


def _optimizer_rate(session: Session) -> float | None:
    """Optimizer steps per batch, all optimizers together; None where none was seen twice."""
    total = 0.0
    marks = session.optimizer_marks or []
    for optimizer in {o for o, _ in marks}:
        batches = [n for o, n in marks if o == optimizer]
        if len(batches) >= 2 and batches[-1] > batches[0]:
            total += (len(batches) - 1) / (batches[-1] - batches[0])
    return total or None


def _check_safety(session: Session) -> None:
    """What speaks against changing each loader of the step; foreign code, so anything may fail."""
    from loaderdoctor.instrument.dataset.dataset_code import (
        normalisation,
        randomness_of_dataset,
        stores,
    )
    from loaderdoctor.instrument.dataset.safety import safety
    from loaderdoctor.instrument.dataset.transforms import augmentations

    assert session.definition is not None
    for state in session.definition.train:
        loader = state.living()
        if loader is None:
            continue
        try:
            changes = {
                "safety": safety(loader),
                "augmentations": augmentations(loader.dataset),
                "randomness": randomness_of_dataset(loader.dataset),
                "stores": stores(loader.dataset),
                "normalisation": normalisation(loader.dataset),
            }
        except Exception as error:
            session.note("safety-not-checked", f"{state.id}: {type(error).__name__}: {error}")
        else:
            state.record = msgspec.structs.replace(state.record, **changes)
