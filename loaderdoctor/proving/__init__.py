"""Runs of a script and of its changed form -> what the change brought, and what it kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loaderdoctor.estimate import Estimate, mean
from loaderdoctor.instrument.wire.channel import CheckedRun
from loaderdoctor.proving.samples import Samples
from loaderdoctor.proving.speed import TOLERANCE, is_known, ratio, step_ms, surely
from loaderdoctor.setting_words import same_samples

# Losses of one script on one seed differ by less than this (relative) between two runs where only
# the order of float32 sums does: kernels with atomics, 50 steps of SGD.
MAX_NOISE = 1e-3

# "redrawn": other random draws, and with these fixed the same batches and losses.
Numerics = Literal["same", "same-within", "redrawn", "changed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How far two runs agree, over the first steps of both."""

    n_steps: int  # compared
    n_same_inputs: int | None  # None: no inputs were seen
    max_loss_difference: float | None  # relative; None: no losses were seen
    first_differing_step: int | None  # of the losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a report said that a change brings: times as fast."""

    times: float
    low: float | None = None  # of its own interval; None: predicted, or one window
    high: float | None = None
    at_best: bool = False  # a bound: no more than this

    @property
    def is_gain(self) -> bool:
        """Whether any is promised: not where a new run may be as fast as the script as it is."""
        return self.at_best or self.low is None or self.low > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The original beside its changed form."""

    before_ms: Estimate
    after_ms: Estimate
    speed_up: Estimate  # before / after, of runs paired by turn
    kept: Kept
    own: Kept | None  # the original beside itself, in another run; None: it ran once
    max_input_difference: float | None  # of inputs whose hashes differ; None: same, or not kept
    fixed: Kept | None = None  # both with fixed random draws; None: not needed, or not possible
    draws_fixed: bool = True  # False: not all of them could be
    draws_repeated: bool = False  # a batch that came again drew what it had drawn
    epoch_ended: bool | None = None  # among the steps with fixed draws; None: not seen
    samples: Samples | None = None  # of an epoch of each; None: not needed, or not seen
    versions: str = ""  # of torch and Python
    surely: float | None = None  # times as fast at the least, below 1 at the most; None: not known

    @property
    def other_batches(self) -> bool:
        """Whether the model is fed otherwise, by more than random draws that were shown to be."""
        return self.same_batches is False and not self._same_when_fixed and not self._not_finite

    @property
    def numerics(self) -> Numerics:
        """What the change did to what is trained."""
        difference, noise = self.kept.max_loss_difference, self._noise
        if self.fixed is not None and self._same_when_fixed:
            # What is drawn once and kept looks the same then as what is drawn anew.
            return "unknown" if self.draws_repeated else "redrawn"
        if self._not_finite:
            return "changed"
        if not self.draws_fixed:
            return "unknown"
        if difference is None or self.differs_from_itself:
            return "unknown"
        if difference == 0.0:
            return "same"
        return "same-within" if difference <= max(MAX_NOISE, 2 * (noise or 0.0)) else "changed"

    @property
    def _same_when_fixed(self) -> bool:
        """Whether the same bytes reached the model, and the losses differ by rounding alone."""
        fixed, noise = self.fixed, self._noise or 0.0
        if fixed is None or not self._same_batches_when_fixed:
            return False
        limit = max(MAX_NOISE, 2 * noise) if noise <= MAX_NOISE else MAX_NOISE
        return fixed.max_loss_difference is not None and fixed.max_loss_difference <= limit

    @property
    def _same_batches_when_fixed(self) -> bool:
        fixed = self.fixed
        return fixed is not None and fixed.n_steps > 0 and fixed.n_same_inputs == fixed.n_steps

    @property
    def differs_from_itself(self) -> bool:
        """Whether two runs of the script as it is, on one seed, come to other losses."""
        return self._noise is not None and self._noise > MAX_NOISE

    @property
    def _not_finite(self) -> bool:
        """Whether a loss of one form is infinite or no number where the other's is one.

        Of a script that does so by itself nothing is known.
        """
        return self.kept.max_loss_difference == math.inf and self._noise != math.inf

    @property
    def _noise(self) -> float | None:
        return self.own.max_loss_difference if self.own is not None else None

    @property
    def same_batches(self) -> bool | None:
        """Whether the very same bytes reached the model, step by step; None: not seen."""
        n = self.kept.n_same_inputs
        return None if n is None or not self.kept.n_steps else n == self.kept.n_steps

    @property
    def words(self) -> str:
        """The verdict on what was kept, as a report says it."""
        batches = {True: "same batches", False: "other batches", None: "batches not seen"}
        said = batches[self.same_batches]
        if self.same_batches is False and self.max_input_difference is not None:
            said = f"batches within {self.max_input_difference:.1g}"
        numerics = self.numerics
        if numerics == "redrawn":
            ended = " (no epoch ended among them)" if self.epoch_ended is False else ""
            return f"other random draws; with these fixed, same batches and same losses{ended}"
        if numerics == "unknown" and self.draws_repeated and self._same_when_fixed:
            return (
                f"{said}: with random draws fixed both are the same, but batches came again with "
                "the draws they had, so whether each pass draws anew is not known"
            )
        if self._not_finite:
            return f"{said}, losses become infinite or no numbers in one form only"
        if not self.draws_fixed:
            return (
                f"{said}: batches are made in a thread beside the loop, whose random draws can't "
                "be fixed, so nothing else is known"
            )
        if numerics == "same":
            return f"{said}, same losses"
        if numerics == "same-within":
            return f"{said}, losses the same within {self.kept.max_loss_difference:.1g}"
        if numerics == "changed":
            at = self.kept.first_differing_step
            return f"{said}, changes numerics: losses differ from step {at} on"
        if self.kept.max_loss_difference is None:
            return f"{said}, no losses seen"
        if self._same_batches_when_fixed and not self.draws_repeated:
            said = "other random draws; with these fixed, same batches"
        return f"{said}; of losses nothing is known: two runs of the script as it is differ in them"

    def beside(self, expected: str | None) -> str:
        """`words`, beside what the advice said of what is trained; None: that it stays the same."""
        words = self._of_samples()
        if expected is None or self._not_finite:
            return words
        if self.numerics != "changed" and not self._samples_lost:
            return words
        if self.as_expected(expected) is not None:
            as_it = "as" if self.as_expected(expected) else "not as"
            return f"{words}, {as_it} the advice says ({expected})"
        unknown = "" if self.samples is not None else "; whether samples are lost was not checked"
        return f"{words}, as advised ({expected}){unknown}"

    def _of_samples(self) -> str:
        """`words`, with what became of the samples where batches differ."""
        if self.samples is None:
            return self.words
        if self.samples.same is None or self.numerics != "changed" or self._not_finite:
            return f"{self.words}; {self.samples.words}"
        at = self.kept.first_differing_step  # of other batches no losses are the same
        return f"other batches, {self.samples.words}: losses differ from step {at} on"

    @property
    def _samples_lost(self) -> bool:
        """Whether samples were seen to be lost, or to come twice."""
        return self.samples is not None and self.samples.same is False

    def as_expected(self, expected: str | None) -> bool | None:
        """Whether training is as the advice said (None: the same); None: not known, or not checked.

        Losses of other batches differ whatever is in these: whether no sample is lost then is told
        from the samples of an epoch. No advice takes samples away, and losses make up for none.
        """
        numerics = self.numerics
        if self._samples_lost:
            return False
        if numerics == "unknown":
            return None
        if numerics != "changed":
            return True
        if expected is None or self._not_finite:
            return False
        if same_samples(expected):
            return True
        return self.samples.same if self.samples is not None else None

    def faster(self) -> bool | None:
        """Whether the changed form is; None where the interval leaves it open."""
        if self.bound is not None:
            return self.bound > 1.0
        if self.speed_up.low > 1.0:
            return True
        return False if self.speed_up.high < 1.0 else None

    @property
    def bound(self) -> float | None:
        """`surely`, where that is all that turns tell: their interval holds anything, or 1."""
        got = self.speed_up
        tells = is_known(got) and not got.low <= 1.0 <= got.high
        return None if tells else self.surely

    def keeps(self, promise: Promise | None) -> bool | None:
        """Whether what was promised was got; None: nothing was promised, or one turn alone ran.

        Or the interval leaves it open. A bound is kept by any gain that is one, and broken only by
        a gain that is surely beyond it: "at best" was wrong then. What was measured is not kept
        where no gain shows, none beyond what two runs differ by is left, and so large a one is
        ruled out; where a new run was said to gain nothing, maybe, it is kept by one that is as
        fast.
        """
        got = self.speed_up
        if promise is None or not got.bounded:
            return None
        low, high = got.value * (1 - TOLERANCE), got.value * (1 + TOLERANCE)
        if promise.at_best:
            least = max(got.low, self.bound or 0.0) if self.faster() else got.low
            if promise.times < min(low, least):
                return False
            return True if self.faster() is True or promise.times <= high else None
        if not promise.is_gain and self.faster() is False:
            return False
        lowest = min(promise.low or promise.times, promise.times)
        ruled_out = self.faster() is not True and promise.times > got.high
        if promise.is_gain and ruled_out and got.high <= 1 + TOLERANCE:
            return False  # a gain was promised, and none was shown
        if self.bound is not None and (self.bound < 1.0 or lowest <= self.bound):
            return self.bound > 1.0
        if lowest <= high and not (promise.is_gain and ruled_out):
            return True
        if not is_known(got):
            return None  # such an interval holds anything
        if promise.is_gain and ruled_out and lowest <= max(high, got.high):
            return None
        return lowest <= got.high


def kept(a: CheckedRun, b: CheckedRun) -> Kept:
    """How far the checked steps of two runs agree."""
    pairs = list(zip(a.steps, b.steps, strict=False))
    losses = [
        (i, x.loss, y.loss)
        for i, (x, y) in enumerate(pairs)
        if x.loss is not None and y.loss is not None
    ]
    differences = [(i, _relative(x, y)) for i, x, y in losses]
    return Kept(
        n_steps=len(pairs),
        # A step of a second optimizer has none: the model was called before the first one's.
        n_same_inputs=sum(x.inputs == y.inputs for x, y in pairs)
        if any(x.inputs or y.inputs for x, y in pairs)
        else None,
        max_loss_difference=max((d for _, d in differences), default=None),
        first_differing_step=next((i for i, d in differences if d > MAX_NOISE), None),
    )


def agree(compared: Kept) -> bool:
    """Whether nothing is left to explain: same inputs where they were seen, losses but rounding."""
    other = compared.n_same_inputs is not None and compared.n_same_inputs < compared.n_steps
    return not other and (compared.max_loss_difference or 0.0) <= MAX_NOISE


def _epoch_ended(runs: Sequence[CheckedRun]) -> bool | None:
    """In all of them; None where one did not see."""
    seen = [run.epoch_ended for run in runs]
    return None if None in seen else all(seen)


def _relative(x: float, y: float) -> float:
    if x == y or (math.isnan(x) and math.isnan(y)):
        return 0.0
    if not (math.isfinite(x) and math.isfinite(y)):
        return math.inf
    return abs(x - y) / max(abs(x), abs(y))


def proof(
    turns: Sequence[tuple[CheckedRun, CheckedRun]],
    *,
    n_looks: int = 1,
    fixed: tuple[CheckedRun, CheckedRun] | None = None,
    max_input_difference: float | None = None,
) -> Proof | None:
    """Of (original, changed) runs in turns; None where a run has too few steps to time.

    `fixed`: both once more with fixed random draws, where they differ without. `n_looks`: how often
    the ratio was, or might have been, looked at to end the turns.
    """
    speed_up = ratio(turns, n_looks=n_looks)
    if speed_up is None:
        return None
    first = turns[0]
    return Proof(
        before_ms=mean([step_ms(a) or 0.0 for a, _ in turns]),
        after_ms=mean([step_ms(b) or 0.0 for _, b in turns]),
        speed_up=speed_up,
        kept=kept(*first),
        own=kept(first[0], turns[1][0]) if len(turns) > 1 else None,
        max_input_difference=max_input_difference,
        fixed=kept(*fixed) if fixed is not None else None,
        draws_fixed=fixed is None or all(run.draws_fixed for run in fixed),
        draws_repeated=fixed is not None and any(run.draws_repeated for run in fixed),
        epoch_ended=_epoch_ended(fixed) if fixed is not None else None,
        versions=first[0].versions,
        surely=surely(turns),
    )
