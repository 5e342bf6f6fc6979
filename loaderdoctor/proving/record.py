"""What was proven and what was written, told and kept in the run folder.

A proof for a terminal, a pull request and programs, with what was promised and what was got; what
`apply` wrote, so that it can be taken back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.errors import UsageError
from loaderdoctor.estimate import Estimate, interval
from loaderdoctor.proving import Kept, Promise, Proof
from loaderdoctor.proving.edits import FileEdit
from loaderdoctor.proving.samples import Samples
from loaderdoctor.proving.speed import MIN_SURE_TURNS, is_known
from loaderdoctor.report import write_bytes
from loaderdoctor.report.words.changes import MAY_GAIN_NOTHING
from loaderdoctor.setting_words import capitalised

# In the run folder whose advice was proven; the oldest first.
PROOFS = "proofs.json"
# Next to report.json.
JOURNAL = "applied.json"

T = TypeVar("T", bound=msgspec.Struct)


def headline(proof: Proof, *, promise: Promise | None = None) -> str:
    """What the change brought, in a sentence, and where losses can't be compared, in another."""
    ratio, faster = _ratio(proof), proof.faster()
    if faster is None:
        said = f"No difference beyond the noise: {ratio} as fast"
    elif faster:
        said = capitalised(f"{ratio} as fast")
    else:
        said = f"Slower: {ratio} as fast"
    also = ""
    if proof.differs_from_itself and proof.numerics == "unknown":
        also = " Whether training stays the same can't be told: the script differs from itself."
    kept = proof.keeps(promise)
    if promise is None:
        return f"{said}.{also}"
    if kept is None and promise.at_best and proof.speed_up.bounded:
        shown = "whether it gains anything can't be told" if faster is None else "it gains nothing"
        return f"{said}; {shown} (promised: {promised(promise)}).{also}"
    if kept is None:
        why = "noisy" if proof.speed_up.bounded else "few turns"
        return f"{said}; too {why} to tell whether as promised ({promised(promise)}).{also}"
    if kept and promise.is_gain and not promise.at_best and faster is None:
        return f"{said}; too noisy to rule out what was promised ({promised(promise)}).{also}"
    word = "promised" if promise.is_gain else "expected"
    return f"{said}; {'as' if kept else 'not as'} {word} ({promised(promise)}).{also}"


def promised(promise: Promise) -> str:
    """`3.9x [3.10, 4.70]`, `at best 3.9x`, `1.2x [0.83, 1.72], may gain less or nothing`.

    The interval is one of what a new run of the script gets.
    """
    said = f"{'at best ' if promise.at_best else ''}{fmt.ratio(promise.times)}"
    if promise.low is None or promise.high is None:
        return said
    between = f"[{promise.low:.2f}, {promise.high:.2f}]"
    return f"{said} {between}" + ("" if promise.is_gain else f", {MAY_GAIN_NOTHING}")


def rows(proof: Proof, *, expected: str | None = None) -> list[tuple[str, str]]:
    """What a reader checks: times, batches, losses."""
    compared = proof.kept
    shown = [
        ("as it is", _time(proof.before_ms)),
        ("changed", _time(proof.after_ms)),
        ("speed", f"{_ratio(proof)}{_of_turns(proof)}"),
        ("training", proof.beside(expected)),
    ]
    if proof.numerics == "redrawn" and proof.fixed is not None:
        compared = proof.fixed
    if compared.n_same_inputs is not None:
        n = compared.n_steps
        shown.append(("model inputs", f"{compared.n_same_inputs} of the first {n} steps identical"))
    if compared.max_loss_difference is not None:
        own = proof.own.max_loss_difference if proof.own is not None else None
        beside = f"; the script beside itself: {own:.1g}" if own is not None else ""
        shown.append(
            ("losses", f"differ by at most {compared.max_loss_difference:.1g} (relative){beside}")
        )
    return shown


def markdown(
    proof: Proof,
    *,
    title: str,
    machine: str,
    command: str,
    promise: Promise | None,
    expected: str | None = None,
) -> str:
    """One page that can go into a pull request."""
    lines = [f"### {title}", "", headline(proof, promise=promise), "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows(proof, expected=expected)]
    lines += [
        "",
        f"Original and changed script in fresh processes, in turns, on the same seed: `{command}`. "
        f"{machine}{f' {proof.versions}.' if proof.versions else ''}",
        "",
    ]
    return "\n".join(lines)


def _time(estimate: Estimate) -> str:
    return f"{fmt.step_ms(estimate.value, interval(estimate))} a step"


def _ratio(proof: Proof) -> str:
    """`3.2× [2.57, 4.03]`; where turns differ too much for an interval, what is certain."""
    got, bound = proof.speed_up, proof.bound
    if bound is not None:
        return f"at {'least' if bound > 1.0 else 'most'} {fmt.ratio(bound)}"
    if not is_known(got):
        few = "too few turns" if got.n < MIN_SURE_TURNS else "turns differ too much"
        return f"{fmt.ratio(got.value)} ({few} for an interval)"
    return f"{fmt.ratio(got.value)} [{got.low:.2f}, {got.high:.2f}]"


def _of_turns(proof: Proof) -> str:
    """What its figure is of."""
    got = proof.speed_up
    n = fmt.count(got.n, "turn")
    if proof.bound is not None:
        return f" in any of {n}, {fmt.ratio(got.value)} on average"
    return f", 95 % of {n}" if is_known(got) else f", {n}"


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
    surely: float | None = None  # at the least (below 1: at the most), in place of an interval
    training: str = ""  # the verdict on what was kept, in words
    numerics: str = "unknown"
    same_batches: bool | None = None
    expected: str | None = None  # what the advice said of what is trained; None: nothing
    as_expected: bool | None = None  # whether training is so; None: not known, or not checked
    promised_speed_up: float | None = None
    promised_between: tuple[float, float] | None = None  # 25 of 30 new runs lay in such a one
    promised_gain: bool | None = None  # False: it may gain nothing; None: nothing was promised
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
        if self.surely is not None:
            said = f"got at {'least' if self.surely > 1.0 else 'most'} {fmt.ratio(self.surely)}"
        if times is not None:
            at_best = "at best " if self.promise_at_best else ""
            word = "expected" if self.promised_gain is False else "promised"
            may = " or no gain" if self.promised_gain is False else ""
            missed = f", not as {word}" if self.promise_kept is False else ""
            if (
                self.promise_kept is None
                and self.surely is None
                and got.low is not None
                and got.low <= 1.0 <= (got.high or math.inf)
            ):
                missed = ", too noisy to tell"
            said = f"{word} {at_best}{fmt.ratio(times)}{may}, {said}{missed}"
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
        surely=proof.bound,
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
    return _listed(run / PROOFS, ProofRecord)


def _listed(file: Path, kind: type[T]) -> list[T]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[kind])  # type: ignore[valid-type]
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


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """One file, before and after."""

    path: str
    before: bytes
    after: bytes


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """One `apply --write`."""

    when: float  # seconds since 1970
    changes: str
    files: tuple[Replaced, ...]
    numbers: tuple[int, ...] = ()  # of the changes; (): not noted, or the first


def journal_of(run: Path) -> Path:
    """Where it lies for a run folder, or for its report.json."""
    return (run if run.is_dir() else run.parent) / JOURNAL


def read_journal(run: Path) -> list[Applied]:
    """The oldest first; [] where nothing was applied. Raises UsageError for a torn file."""
    return _listed(journal_of(run), Applied)


def write_journal(run: Path, applied: Sequence[Applied]) -> None:
    """In place of what is there."""
    write_bytes(journal_of(run), msgspec.json.encode(applied))


def note(run: Path, changes: str, numbers: Sequence[int], edits: Sequence[FileEdit]) -> None:
    """Before anything is written: what is there can be had again, whatever happens."""
    files = tuple(Replaced(path=str(e.path), before=e.before, after=e.after) for e in edits)
    one = Applied(when=time.time(), changes=changes, files=files, numbers=tuple(numbers))
    write_journal(run, [*read_journal(run), one])


def standing(run: Path) -> tuple[tuple[int, ...], dict[Path, bytes]]:
    """Numbers of the changes that are written and still stand; their files as they were before."""
    numbers: list[int] = []
    before: dict[Path, bytes] = {}
    for one in reversed(read_journal(run)):
        there = {Path(x.path): _content(Path(x.path), before) for x in one.files}
        if one.files and all(there[Path(x.path)] == x.after for x in one.files):
            before |= {Path(x.path): x.before for x in one.files}
            numbers += one.numbers
    return tuple(sorted(set(numbers))), before


def _content(path: Path, known: dict[Path, bytes]) -> bytes | None:
    if path in known:
        return known[path]
    try:
        return path.read_bytes()
    except OSError:
        return None
