"""The course of a run, as a generator that is resumed at each step boundary on the training thread.

It lets the loop settle, reports what was observed, then pauses the loop inside the hook until
the command asks for windows, measures them and answers. `yield` means: run one more step.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from loaderdoctor.instrument.session import Driver, Session
from loaderdoctor.instrument.session.messages import Messages
from loaderdoctor.instrument.session.roles import ACCUMULATES_BELOW
from loaderdoctor.instrument.session.script_process import as_launched, process_group, with_sources
from loaderdoctor.instrument.session.step_clock import DeviceMarks, StepClock
from loaderdoctor.instrument.session.switches import TransferObserver
from loaderdoctor.instrument.session.windows import Windows
from loaderdoctor.instrument.system import machine
from loaderdoctor.instrument.system.memory import allocator, fault_us
from loaderdoctor.instrument.trial.trial_checks import default_start_method, loader_settings
from loaderdoctor.instrument.wire.protocol import Begin, Observed, Reported, Stop, Told
from loaderdoctor.instrument.wire.records import ComputeRecord, Environment, TransferRecord
from loaderdoctor.units import NS_PER_S

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from loaderdoctor.instrument.session.compute_watch import ComputeWatch


# Steps timed before the loop counts as warm. The steps that decided the roles came before them
# and are thrown away: the first three or so pay for caches, cuDNN and the allocator.
N_SETTLED = 8
SLOW_AFTER_S = 10.0
N_SETTLED_SLOW = 1
# Accumulation shows once two optimizer steps were seen, and whether a loader joins the steps within
# some 17 of its first batch; beyond so many batches nobody waits for that.
MAX_SETTLING = 64
# Steps without one that is free of other loaders' fetches: then every step has them.
ACCEPT_FOREIGN_AFTER = 16
N_TRANSFER_STEPS = 3

Settling = Generator[
    None, int, tuple[tuple[int, ...], tuple[TransferRecord, ...], ComputeRecord | None]
]
Found = TypeVar("Found")


def drive(session: Session, now: int) -> Driver:
    """The whole course, from the first boundary after the roles are known."""
    marks = DeviceMarks(session.device) if session.device is not None else None
    messages = Messages(session)
    step_ns, transfers, compute = yield from _settle(session, messages, now)
    accumulation = max((round(1 / x) for x in _rates(session) if x < ACCUMULATES_BELOW), default=1)
    session.optimizer_marks = None
    definition = session.definition  # now: loaders join it as it settles
    assert definition is not None  # boundaries exist once the step is defined
    session.wall.step_ns = sum(step_ns) // len(step_ns) if step_ns else 0
    windows = Windows(
        session,
        messages,
        definition,
        marks=marks,
        transfers=transfers,
        accumulation=accumulation,
        step_ns=session.wall.step_ns,
    )
    _check_safety(session)
    device, group = session.device, process_group()
    subnormal = None
    if device is None:
        from loaderdoctor.instrument.session.compute_watch import subnormals

        subnormal = _noted(session, "subnormals-not-looked-for", subnormals)
    session.send(
        Observed(
            definition=definition.text,
            step_ns=step_ns,
            loaders=session.registry.records(),
            transfers=transfers,
            boundaries=tuple(session.boundaries),
            n_steps_so_far=session.n_steps,
            device=str(device) if device is not None else None,
            batches_per_cycle=windows.batches_per_cycle(None),
            environment=environment(device.index or 0 if device is not None else None),
            compute=compute,
            n_devices=n_devices(device),
            group_size=group[1] if group is not None else None,
            trains=definition.trains,
            calls_model=definition.calls_model,
            before_training=session.before_training,
            script=with_sources(
                session.script,
                [*session.registry.files(), *(x.site.rpartition(":")[0] for x in transfers)],
            ),
            subnormals=subnormal,
        )
    )
    if session.recording is not None:
        yield from session.recording(session).course(windows)
        return
    while True:
        session.workers.flush()  # the command reads the records while the loop is paused
        message = yield from messages.next()
        if message is None or isinstance(message, (Begin, Reported, Told)):
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
    # Host times only: the step clock of the device begins with the first window.
    window = session.window
    clock = window.clock = StepClock(None)
    clock.start(now, fresh=session.at_fresh_feed)
    n = 0
    transfers: tuple[TransferRecord, ...] = ()
    compute: ComputeRecord | None = None
    try:
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
                watch.remove()
                compute, watch = _noted(session, "compute-not-watched", watch.record), None
            if clock.n_marks_since_step >= ACCEPT_FOREIGN_AFTER:
                clock.accept_foreign()
                session.wall.in_steps = True
            enough = observer is None and clock.n_steps >= (N_SETTLED_SLOW if slow else N_SETTLED)
            known = not session.roles.optimizer_ids() or bool(_rates(session))
            waits = not known or session.wall.joining.is_open(session.n_steps)
            if enough and (slow or n >= MAX_SETTLING or not waits):
                if not session.join():
                    break
                # Steps that had their batches were not timed.
                clock = window.clock = StepClock(None)
                clock.start(now, fresh=session.at_fresh_feed)
                n = 0
    finally:
        if watch is not None:
            watch.remove()
        if observer is not None:
            observer.remove()
    session.close_window()
    return clock.finish().host_ns, transfers, compute


def _transfer_observer(session: Session) -> TransferObserver | None:
    if session.device is None:
        return None
    observer = TransferObserver()
    observer.install()
    observer.begin_step()
    session.window.watch_batch = observer.note_batch
    session.window.begin_thread_step = observer.begin_step
    return observer


def _compute_watch(session: Session) -> ComputeWatch | None:
    from loaderdoctor.instrument.session.compute_watch import ComputeWatch

    watch = ComputeWatch(session.device, acting=lambda: session.live)
    if _noted(session, "compute-not-watched", watch.install):
        return watch
    watch.remove()
    return None


def _noted(session: Session, kind: str, look: Callable[[], Found], *, of: str = "") -> Found | None:
    """What that finds; None, and a note, where foreign code does not let it."""
    try:
        return look()
    except Exception as error:  # torch's own classes, the script's dataset or optimizer
        session.note(kind, f"{of}{type(error).__name__}: {error}")
        return None


def _rates(session: Session) -> list[float]:
    """Steps per batch of each optimizer that was seen more than once."""
    batches: dict[int, list[int]] = {}
    for optimizer, n in session.optimizer_marks or []:
        batches.setdefault(optimizer, []).append(n)
    return [(len(at) - 1) / (at[-1] - at[0]) for at in batches.values() if at[-1] > at[0]]


def _check_safety(session: Session) -> None:
    """What speaks against changing each loader of the step; foreign code, so anything may fail."""
    from loaderdoctor.instrument.dataset import stream_of
    from loaderdoctor.instrument.dataset.containers import containers
    from loaderdoctor.instrument.dataset.dataset_code import (
        clients,
        file_systems,
        normalisation,
        randomness_of_dataset,
        stores,
    )
    from loaderdoctor.instrument.dataset.safety import safety
    from loaderdoctor.instrument.dataset.transforms import augmentations
    from loaderdoctor.instrument.trial.trial_checks import guard_code

    assert session.definition is not None
    for state in session.definition.train:
        loader = state.living()
        if loader is None:
            continue
        looks: dict[str, Callable[[DataLoader[Any]], dict[str, Any]]] = {
            "safety-not-checked": lambda own: {
                "safety": msgspec.structs.replace(
                    # A recorded run calls no code of the script's that would not run without it.
                    safety(own, calls_own=session.recording is None or _is_pickled(own)),
                    guard_missing=guard_code(),
                ),
                "augmentations": augmentations(own.dataset),
                "randomness": randomness_of_dataset(own.dataset),
                "stores": stores(own.dataset),
                "file_systems": file_systems(own.dataset),
                "clients": clients(),
                "normalisation": normalisation(own.dataset),
            },
            # Each by itself: what fails here says nothing against changing the loader.
            "containers-not-read": lambda own: {"containers": containers(own.dataset)},
            "stream-not-read": lambda own: {"stream": stream_of(own.dataset)},
        }
        for kind, look in looks.items():
            found = _noted(session, kind, partial(look, loader), of=f"{state.id}: ")
            state.record = msgspec.structs.replace(state.record, **(found or {}))


def _is_pickled(loader: DataLoader[Any]) -> bool:
    """Whether the loop itself pickles its dataset: for workers that are not forked."""
    return loader_settings(loader).start_method not in (None, "fork")


# The measuring process's own surroundings, as the report shows them.


def environment(device_index: int | None) -> Environment:
    """Look once; `device_index` is the CUDA device trained on, None without one.

    Never initialises CUDA, and never chooses a start method.
    """
    import torch

    name = memory = None
    if device_index is not None:
        properties = torch.cuda.get_device_properties(device_index)
        name, memory = properties.name, properties.total_memory
    _, shm_free = machine.shm_bytes()
    swap_used, _ = machine.swap_bytes()
    rank, n_ranks = process_group() or as_launched() or (None, None)
    return Environment(
        torch=str(torch.__version__),  # a str subclass that JSON encoders refuse
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        device_name=name,
        device_memory_bytes=memory,
        cuda=torch.version.cuda or torch.version.hip,
        usable_cpus=machine.usable_cpus(),
        n_threads=torch.get_num_threads(),
        memory_available_bytes=machine.memory_available_bytes(),
        shm_free_bytes=shm_free,
        open_files_limit=machine.open_files_limit(),
        start_method=default_start_method(),
        host=socket.gethostname(),
        rank=rank,
        n_ranks=n_ranks,
        n_local_ranks=machine.local_ranks(),
        cudnn_benchmark=torch.backends.cudnn.benchmark if device_index is not None else None,
        tf32=_tf32() if device_index is not None else None,
        swap_used_bytes=swap_used,
        allocator=allocator(),
        fault_us=fault_us(),
        cpu_bf16=_cpu_bf16(),
    )


def n_devices(device: torch.device | None) -> int:
    """Accelerators that this process sees; 0 where it trains on none."""
    import torch

    return torch.cuda.device_count() if device is not None else 0


def _tf32() -> bool | None:
    """Whether float32 matrix products may use TensorFloat-32; None where torch won't say."""
    import torch

    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch >= 2.9 refuses after a mix of its old and new settings
        return None


def _cpu_bf16() -> bool | None:
    """Whether oneDNN has bfloat16 instructions to use here; None where torch won't say."""
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # built without oneDNN
        return None
