"""How a run of the script ended, in words, what to do about it; whether another run is its like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loaderdoctor.errors import RunError
from loaderdoctor.instrument.system.machine import shm_bytes
from loaderdoctor.instrument.wire.protocol import (
    SCRIPT_ENDED,
    Ended,
    NoDataLoader,
    Note,
    Observed,
    WindowDone,
    WindowRequest,
)

MAX_REASON = 300  # characters of an exception that a table or a line can hold
# A loop of few batches with at least this many optimizer steps, and so many to each batch: several
# networks, or several passes over a batch (PPO's ten), are steps of a loader's loop yet.
MIN_STEPS, FEW = 50, 20
NOT_BEGUN = "the script ended before this window"
_MB = 1e6
# What gloo, NCCL and torch's store say on a rank whose peer left in the middle of a collective.
_PEER_LEFT = (
    "closed by peer",
    "reset by peer",
    "remote process exiting prematurely",
    "communicator was aborted",
    "Broken pipe",
)
# Of the steps asked for: a window cut shorter than this is measured again in the next run.
ENOUGH_OF_WINDOW = 0.5


class NeverTrainedError(RunError):
    """The script ended by itself and in order, having read batches without training on any."""


def nothing_measured(ended: Ended, label: str) -> RunError:
    """The error of a script that ended before there was anything to measure.

    A script that failed by itself, its command line refused for example, keeps its exit code.
    """
    if ended.how == "script-ended" and not ended.exit_code and ended.before_training:
        return NeverTrainedError(_never_trained(ended, label))
    error = RunError(_why_nothing(ended, label))
    if ended.exit_code > 0:
        error.exit_code = ended.exit_code
    return error


def lost_a_peer(ended: Ended) -> bool:
    """Whether a rank failed because another one left: what that one says is the cause."""
    return any(words in (ended.reason or "") for words in _PEER_LEFT)


def raise_if_broken(notes: Sequence[Note], label: str) -> None:
    """Raises RunError after a fault of ours in a measuring process: nothing more will come."""
    for note in notes:
        if note.kind == "internal-error":
            raise RunError(
                f"{label}: measuring failed inside loaderdoctor; the script ran on unwatched.\n"
                f"{note.text}"
            )


def _why_nothing(ended: Ended, label: str) -> str:
    """One line: why there is nothing to measure."""
    if ended.how == "no-loader" and ended.exit_code:
        return (
            f"{label}: the script exited with code {ended.exit_code} before it iterated a "
            "DataLoader; what it says of that stands above."
        )
    if ended.how == "no-loader":
        return (
            f"{label}: no torch DataLoader was iterated, so there is no loader to measure. "
            "If the script starts other processes that train, run one of them instead."
        )
    if ended.how == "script-failed":
        how = ended.reason or f"it failed with exit code {ended.exit_code}"
        text = f"{label}: the script failed before its loop was warm: {how}"
        return f"{text.rstrip('.')}.{advice(ended)}"
    if ended.how == "interrupted":
        return f"{label}: interrupted before its loop was warm."
    if ended.n_batches and ended.n_optimizer_steps >= max(MIN_STEPS, FEW * ended.n_batches):
        return _few_batches(ended, label)
    return (
        f"{label}: ended before enough training steps were seen (exit code "
        f"{ended.exit_code}). Let it run longer: more batches or more epochs."
    )


def _few_batches(ended: Ended, label: str) -> str:
    """One line: it trains long on few batches, and a longer run would not change that."""
    n, loader = ended.n_batches, ended.loaders[0].id if ended.loaders else "its DataLoader"
    return (
        f"{label}: took {ended.n_optimizer_steps:,} optimizer steps on {n:,} "
        f"{'batch' if n == 1 else 'batches'} of {loader}: its loop takes no batch a step, so there "
        "is no loader to measure. What its steps take is what they compute: profile those "
        "(torch.profiler), and `loaderdoctor analyze` reads the trace."
    )


def _never_trained(ended: Ended, label: str) -> str:
    """One line: what it read instead."""
    n = sum(one.n_batches for one in ended.before_training)
    loaders = " and ".join(dict.fromkeys(one.loader for one in ended.before_training))
    return (
        f"{label}: ended without a backward pass or an optimizer step, after {n:,} "
        f"{'batch' if n == 1 else 'batches'} of {loaders}: too few to measure. Let it run longer."
    )


def without_loader(seen: NoDataLoader, label: str) -> str:
    """One line: the script trains, but there is no loader to measure."""
    what = "backward passes" if seen.of_passes else "steps"
    text = (
        f"{label}: no torch DataLoader was iterated in {seen.n_steps} {what} of {seen.site}: the "
        f"loop makes its batches itself, so there is no loader to measure.{built_only(seen)}"
    )
    return f"{text} There is no profile of it either: {seen.reason}." if seen.reason else text


def built_only(seen: NoDataLoader) -> str:
    """What a DataLoader that was built and never iterated may be; empty where there is none."""
    if not seen.built:
        return ""
    return (
        " One was built: if its class replaces __iter__ without calling torch's own, only "
        "batches that torch's own makes can be measured."
    )


def killed(name: str) -> str:
    """A signal that ended the script before it could say why."""
    if name == "SIGKILL":
        return (
            "ended by SIGKILL, as the kernel's out-of-memory killer does (`dmesg`, or "
            "memory.events of the container, tells): fewer workers, smaller batches or more memory"
        )
    return f"ended by {name}"


def in_one_line(error: BaseException) -> str:
    """Class and message of an exception, for a table.

    An error of a worker holds the worker's traceback: its last line is the message then.
    """
    name, text = type(error).__name__, str(error).strip()
    if "Traceback (most recent call last)" in text:
        return text.splitlines()[-1].strip()[:MAX_REASON]
    text = " ".join(text.split())
    return f"{name}: {text}"[:MAX_REASON] if text else name


def advice(ended: Ended) -> str:
    """What to do about such an end, with a space before it; empty where nothing is known."""
    reason = ended.reason or ""
    if not ("Bus error" in reason or "SIGBUS" in reason or "shared memory" in reason):
        return ""
    total, _ = shm_bytes()
    size = f" of {total / _MB:.1f} MB" if total is not None else ""
    return (
        f" Workers hand their batches over in /dev/shm{size}, which is too small for them: give "
        "the container more (docker run --shm-size=8g …, in Kubernetes an emptyDir of medium "
        "Memory at /dev/shm), or use fewer workers, a smaller prefetch_factor or smaller batches."
    )


def took_down(done: WindowDone, ended: Ended | None) -> str | None:
    """Why the script failed within this window; None where it did not."""
    if ended is None or ended.how != "script-failed":
        return None
    if done.reason not in (SCRIPT_ENDED, NOT_BEGUN):
        return None
    return f"the script failed: {ended.reason or f'exit code {ended.exit_code}'}{advice(ended)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTold:
    """One run of the script, for the records of the run folder."""

    took_s: float  # from its start to its end, pauses of the loop between windows included
    to_warm_s: float | None  # of it, until its loop was warm; None: it never was
    n_windows: int = 0  # measured in it
    n_steps: int = 0
    how: str = ""  # Ended.how


def is_cut(request: WindowRequest, done: WindowDone | None) -> bool:
    """Whether a window is to be measured in another run: the script's end left too little of it."""
    if done is None:
        return True
    if done.reason not in (SCRIPT_ENDED, NOT_BEGUN):
        return False
    return done.n_steps < ENOUGH_OF_WINDOW * request.n_steps


def unlike(first: Observed, later: Observed) -> str | None:
    """How the loop of a later run differs from the first one's, in words; None: it does not.

    By what its code and its loader are, not by its pace: that varies with the machine.
    """
    if first.trains and not later.trains:
        return "it trained nothing"
    if first.definition != later.definition:
        return f"its step is {later.definition}, and was {first.definition}"
    if first.device != later.device:
        return f"it ran on {later.device or 'the CPU'}"
    one, other = first.main_loader, later.main_loader
    if one is None or other is None:
        return None
    for what, was, now in (
        ("settings", one.settings, other.settings),
        ("batch size", one.batch_size, other.batch_size),
        ("samples", one.n_samples, other.n_samples),
        ("steps an epoch", one.steps_per_epoch, other.steps_per_epoch),
    ):
        if was is not None and now is not None and was != now:
            figures = "" if what == "settings" else f" ({now}, and {was} at first)"
            return f"its loader has other {what}{figures}"
    return None
