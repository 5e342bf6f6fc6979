"""A proof for programs, and as the run folder keeps it: what was promised, and what was got."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.errors import UsageError
from loaderdoctor.estimate import Estimate
from loaderdoctor.proving.judge import Kept, Promise, Proof
from loaderdoctor.proving.samples import Samples
from loaderdoctor.report.files import write_bytes

# In the run folder whose advice was proven; the oldest first.
PROOFS = "proofs.json"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate; an end of its interval that is not known is null."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1


class ProofRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One proof."""

    changes: str
    before_ms: Figure
    after_ms: Figure
    speed_up: Figure
    training: str = ""  # the verdict on what was kept, in words
    numerics: str = "unknown"
    same_batches: bool | None = None
    expected: str | None = None  # what the advice said of what is trained; None: nothing
    as_expected: bool | None = None  # whether training is so; None: not known, or not checked
    promised_speed_up: float | None = None
    promised_between: tuple[float, float] | None = None  # 25 of 30 new runs lay in such a one
    promised_gain: bool | None = None  # False: about as fast, may help; None: nothing was promised
    promise_at_best: bool | None = None
    promise_kept: bool | None = None
    kept: dict[str, float | None] | None = None
    own: dict[str, float | None] | None = None
    fixed_draws: dict[str, float | None] | None = None
    samples: dict[str, int] | None = None  # of an epoch, where batches differ; None: not seen
    schema: str = "loaderdoctor.proof/1"

    @property
    def sentence(self) -> str:
        """`num_workers=3 (now 0): promised 1.8×, got 1.7× [1.6, 1.8]; same batches …`."""
        got, times = self.speed_up, self.promised_speed_up
        between = "" if got.low is None or got.high is None else f" [{got.low:.2f}, {got.high:.2f}]"
        said = f"got {fmt.ratio(got.value)}{between}"
        if times is not None:
            at_best = "at best " if self.promise_at_best else ""
            word = "expected" if self.promised_gain is False else "promised"
            may = "about as fast, " if self.promised_gain is False else ""
            missed = f", not as {word}" if self.promise_kept is False else ""
            said = f"{word} {may}{at_best}{fmt.ratio(times)}, {said}{missed}"
        return "; ".join(filter(None, (f"{self.changes}: {said}", self.training)))


def record(
    proof: Proof, *, changes: str, promise: Promise | None = None, expected: str | None = None
) -> ProofRecord:
    """The proof as it is kept and as `--json` writes it."""
    return ProofRecord(
        changes=changes,
        before_ms=_figure(proof.before_ms),
        after_ms=_figure(proof.after_ms),
        speed_up=_figure(proof.speed_up),
        training=proof.beside(expected),
        expected=expected,
        as_expected=proof.as_expected(expected),
        numerics=proof.numerics,
        same_batches=proof.same_batches,
        promised_speed_up=promise.times if promise is not None else None,
        promised_between=_between(promise),
        promised_gain=promise.is_gain if promise is not None else None,
        promise_at_best=promise.at_best if promise is not None else None,
        promise_kept=proof.keeps(promise),
        kept=_compared(proof.kept),
        own=_compared(proof.own),
        fixed_draws=_compared(proof.fixed),
        samples=_counted(proof.samples),
    )


def keep(run: Path, one: ProofRecord) -> None:
    """Add it to those of the run folder."""
    text = msgspec.json.format(msgspec.json.encode([*kept_proofs(run), one]), indent=2)
    write_bytes(run / PROOFS, text)


def kept_proofs(run: Path) -> list[ProofRecord]:
    """The oldest first; [] where nothing was proven. Raises UsageError for a torn file."""
    file = run / PROOFS
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[ProofRecord])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{file}: can't be read ({error}).") from None


def _between(promise: Promise | None) -> tuple[float, float] | None:
    if promise is None or promise.low is None or promise.high is None:
        return None
    return (promise.low, promise.high)


def _figure(estimate: Estimate) -> Figure:
    low, high = (x if math.isfinite(x) else None for x in (estimate.low, estimate.high))
    return Figure(value=estimate.value, low=low, high=high, n=estimate.n)


def _counted(samples: Samples | None) -> dict[str, int] | None:
    if samples is None or samples.same is None:
        return None
    names = ("n", "n_lost", "n_doubled", "n_others", "n_changed", "n_own")
    return {name: getattr(samples, name) for name in names}


def _compared(found: Kept | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    difference = found.max_loss_difference
    return {
        "n_steps": found.n_steps,
        "n_same_inputs": found.n_same_inputs,
        "max_loss_difference": difference
        if difference is None or math.isfinite(difference)
        else None,
        "first_differing_step": found.first_differing_step,
    }
