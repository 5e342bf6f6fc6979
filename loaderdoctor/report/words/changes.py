"""What to change, grouped as it was tried: the source of the first sentence and of the list alike.

Words say where a figure comes from, the same everywhere (`MEASURED`, `PREDICTED`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.report.model import Basis, Recommendation, Report, Trial
from loaderdoctor.setting_words import capitalised, phrase, together
from loaderdoctor.settings import AXES_BY_NAME, Settings

MEASURED = "measured here"
PREDICTED: Mapping[Basis, str] = {
    "ablation": "predicted by ablation",
    "trace": "predicted from the trace",
    "times": "predicted from the loop's times",
}
_MEANINGS = {
    MEASURED: "tried in this run, in turns with the loop as it is",
    PREDICTED["ablation"]: "computed from windows with batches already in memory",
    PREDICTED["trace"]: "computed from where the step's time was seen to go",
    PREDICTED["times"]: "computed from what its steps, waits and batches took, without a trace",
}

# The heading of changes to the step, where the verdict is about what lies outside it.
IN_THE_STEP = "For the step itself"
# The heading of what is advised in words.
IDEAS = "Ideas, for which no line of the script is known"
# Of a gain that is no larger than what runs of one script differ by.
MAY_GAIN_NOTHING = "may gain less or nothing"
# Less than this in front of the loop as it is, or of what is recommended, is no clear lead.
CLEAR_LEAD = MODERATE_SHARE
# Times of three digits leave this much of their ratio open.
SAME_PACE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Change:
    """Settings that were tried or predicted together, or one change of code."""

    rows: tuple[Recommendation, ...]

    @property
    def first(self) -> Recommendation:
        """The row that speaks for all of them: they share their figures."""
        return self.rows[0]

    @property
    def is_code(self) -> bool:
        """Whether it is written in the user's code, and is not a setting."""
        return _is_code(self.first)

    @property
    def is_idea(self) -> bool:
        """Whether it is code of which no line is known to fit the script."""
        return self.is_code and not (self.first.code or self.first.command)

    @property
    def per(self) -> str:
        """What its milliseconds are of: a batch of another size takes another time."""
        resized = any(row.setting == "batch_size" for row in self.rows)
        return "for as many samples" if resized else "a step"

    @property
    def measured_ms(self) -> float | None:
        """The step with it, where it was tried."""
        return self.first.measured_step_ms

    @property
    def is_loose(self) -> bool:
        """Whether what was measured may be off by a third or more, as after a single window."""
        between, measured_ms = self.first.measured_ci_ms, self.first.measured_step_ms
        if between is None or measured_ms is None:
            return False
        return between[1] - between[0] > 2 / 3 * measured_ms

    @property
    def trains(self) -> str | None:
        """What it does to what is trained, in words; None: nothing, as far as is known."""
        return "; ".join(dict.fromkeys(row.trains for row in self.rows if row.trains)) or None

    def own_ms(self, step_ms: float | None) -> float | None:
        """The loop as it is, in the rounds in which it was tried; else the report's step."""
        return self.first.own_step_ms if self.first.own_step_ms is not None else step_ms

    def times_as_fast(self, step_ms: float | None) -> float | None:
        """As fast as the loop as it is, in the same rounds where known; None: not tried."""
        own_ms, measured_ms = self.own_ms(step_ms), self.measured_ms
        return own_ms / measured_ms if own_ms is not None and measured_ms else None

    def compared(self, step_ms: float | None) -> str:
        """What it is compared with, where the report's step doesn't divide to the same ratio.

        Or that its windows gained more than is claimed of it.
        """
        own_ms, windows_ms = self.first.own_step_ms, self.first.windows_step_ms
        if windows_ms is not None:
            beside = f" next to {fmt.ms(own_ms)} as is" if own_ms is not None else ""
            return (
                f" at most (its windows took {fmt.ms(windows_ms)}{beside}; an instant loader gives "
                "no more, the rest is other programs' doing)"
            )
        if own_ms is None or step_ms is None or abs(own_ms - step_ms) <= SAME_PACE_SHARE * step_ms:
            return ""
        return f" as the loop as it is in the same rounds, {fmt.ms(own_ms)}"

    @property
    def is_promised(self) -> bool:
        """Whether it gained more than what runs of one script differ by, as far as known."""
        return self.first.speed_up_ci is None or self.first.speed_up_ci[0] > 1.0

    @property
    def measured_here(self) -> str:
        """Where its figure comes from, and what of it a new run gets."""
        promised = self.in_new_runs()
        return MEASURED if promised is None else f"{MEASURED}; {promised}"

    def in_new_runs(self) -> str | None:
        """How many times as fast the script's next run is; None where nothing tells it."""
        between = self.first.speed_up_ci
        if between is None:
            return None
        said = f"{between[0]:.2f} to {fmt.ratio(between[1])}"
        return (
            f"{said} in a new run" if self.is_promised else f"a new run {MAY_GAIN_NOTHING}: {said}"
        )

    def words(self) -> str:
        """`num_workers=6 with pin_memory=True`; a change of code by its title.

        Settings of ours read as what they are: `a background thread (prefetch_generator)`.
        """
        if self.is_code:
            return self.first.setting
        also = (self.first.also,) if self.first.also else ()
        return together(((r.setting, r.to) for r in self.rows), *also)

    @property
    def opening(self) -> str:
        return capitalised(self.words())

    def title(self) -> str:
        """As the list of changes has it, with what the loop has now: `num_workers=6 (now 0)`."""
        if self.is_code:
            return self.first.setting
        said = []
        for row in self.rows:
            now = (
                ""
                if row.from_ is None or isinstance(row.from_, bool | str)
                else f" (now {row.from_})"
            )
            said.append(f"{phrase(row.setting, row.to)}{now}")
        return ", ".join(dict.fromkeys(said))

    def prediction(self) -> str | None:
        """`at best 2.2 ms a step, predicted by ablation`; None where nothing was.

        Where it was tried in too few windows to tell, what those took stands in its place.
        """
        first = self.first
        predicted, tuned = first.predicted_step_ms, first.tuned
        untested = first.untested if tuned is None else f"tried in this run: {tuned}"
        if first.seen_step_ms is not None:
            beside = f" next to {fmt.ms(first.own_step_ms)} as is" if first.own_step_ms else ""
            return f"{fmt.ms(first.seen_step_ms)} a step{beside}, in too few windows to tell"
        if predicted is None or predicted <= 0.0:  # no step takes no time: then nothing is known
            return untested
        at_best = "at best " if self.is_bound else ""
        said = f"{at_best}{fmt.ms(predicted)} a step, {self.basis}"
        return f"{said}; {untested}" if untested is not None else said

    def prediction_met(self) -> str | None:
        """What had been predicted, to stand next to what was measured.

        None where the measurement went beyond it: a bound that did not hold tells nothing.
        """
        predicted, measured = self.first.predicted_step_ms, self.measured_ms
        if predicted is None or measured is None or (self.is_bound and measured < predicted):
            return None
        at_best = " at best," if self.is_bound else ""
        return f"{fmt.ms(predicted)}{at_best} {self.basis}"

    def behind(self, step_ms: float | None) -> tuple[str, ...]:
        """What stands behind its figure: how much faster, what is promised, what was predicted."""
        ratio = self.times_as_fast(step_ms)
        faster = (
            f"{fmt.ratio(ratio)} as fast{self.compared(step_ms)}" if ratio is not None else None
        )
        said = (faster, self.in_new_runs(), self.prediction_met())
        return tuple(one for one in said if one is not None)

    @property
    def texts(self) -> tuple[str, ...]:
        """Lines for a shell, and code: each once."""
        return tuple(dict.fromkeys(x for row in self.rows for x in (row.command, row.code) if x))

    @property
    def ideas(self) -> tuple[str, ...]:
        """What to do, in words: where there is no line, or where an option does it."""
        return tuple(dict.fromkeys(row.idea for row in self.rows if row.idea))

    @property
    def predicted_only(self) -> bool:
        """Whether a prediction is all there is."""
        return self.first.predicted_step_ms is not None and self.is_untried

    @property
    def is_untried(self) -> bool:
        """Whether no window of it was measured."""
        return self.measured_ms is None and self.first.seen_step_ms is None

    @property
    def is_bound(self) -> bool:
        """Whether the prediction is the least that a step may take.

        It counts the rest of the step, batches over workers, and CPU time over CPUs; that workers,
        the loop and the pinning thread also share caches, memory bandwidth and the queue makes it
        longer. What threads wait for one another has no such bound.
        """
        return all(row.setting != "num_threads" for row in self.rows)

    @property
    def basis(self) -> str:
        """Where the prediction comes from, in the words of all reports."""
        return PREDICTED.get(self.first.predicted_from or "trace", PREDICTED["trace"])


def changes_of(recommendations: Sequence[Recommendation]) -> tuple[Change, ...]:
    """In the report's order, the first first."""
    groups: list[list[Recommendation]] = []
    for row in recommendations:
        # Changes of code are never one, however alike their figures; nor are settings of which
        # each says for itself what it rests on.
        alone = row.summary is not None or _is_code(row)
        if not groups or alone or _shared(row) != _shared(groups[-1][-1]):
            groups.append([])
        groups[-1].append(row)
    return tuple(map(Change, map(tuple, groups)))


def _is_code(row: Recommendation) -> bool:
    return row.from_ is None and row.to is None


def _shared(row: Recommendation) -> tuple[object, ...]:
    return row.measured_step_ms, row.measured_ci_ms, row.predicted_step_ms, _is_code(row)


def nothing_is_advised(report: Report) -> str | None:
    """For where no change is recommended; None where more is said elsewhere, or nothing is known.

    Never more than trials and findings next to it say.
    """
    unseen = report.shares is not None and report.shares.input is None  # nothing was tried
    told = report.verdict.severity == "none" or unseen or any(f.advice for f in report.findings)
    if told or report.verdict.bound == "unknown" or report.command == "analyze":
        return None
    was_best = [t for t in report.trials if t.gain_confirmed and t.gain_ms_ci is not None]
    if any(_gains(t) for t in was_best):
        return "No change of settings gains enough to be worth it."
    if was_best:
        return (
            "No change of settings is shown to help: what did best in the rounds was not faster "
            "beyond the noise when measured again."
        )
    tests = [test for finding in report.findings for test in finding.tested]
    if any(t.outcome == "faster" for t in tests) or any(_gains(t) for t in report.trials):
        return "No change of settings is shown to help: what was faster was not confirmed."
    said = "No change of settings is known to help."
    if report.verdict.severity != "uncertain" or "--budget" in report.verdict.summary:
        return said
    return f"{said} To know more: run it again with nothing else running, or longer (--budget 120)."


def _gains(trial: Trial) -> bool:
    return trial.gain_ms_ci is not None and trial.gain_ms_ci[0] > 0


def vocabulary(changes: Sequence[Change]) -> str | None:
    """What the words used of these changes mean; None where there are none."""
    used = []
    for change in changes:
        if change.measured_ms is not None:
            used.append(MEASURED)
        if change.prediction_met() is not None or change.predicted_only:
            used.append(change.basis)
    known = [word for word in _MEANINGS if word in used]
    return "; ".join(f"{word}: {_MEANINGS[word]}" for word in known) + "." if known else None


def leader_not_advised(report: Report) -> str | None:
    """The sentence; None where nothing leads clearly, or what leads is recommended."""
    leader = _leader(report)
    if leader is None or _is_advised(leader, report.recommendations):
        return None
    known = (r.measured_step_ms for r in report.recommendations)
    advised_ms = [ms for ms in known if ms is not None]
    if advised_ms and (leader.compared_ms or 0.0) > (1.0 - CLEAR_LEAD) * min(advised_ms):
        return None
    time = fmt.step_ms(leader.step_ms, leader.step_ms_ci)
    return (
        f"{capitalised(leader.label)} is first among the trials ({time} a step) and not advised: "
        f"{_why(leader, bool(advised_ms))}"
    )


def _why(leader: Trial, others_advised: bool) -> str:
    again = " when measured again" if leader.gain_confirmed else ""
    if leader.gain_ms is None:
        return "it was not measured in turns with the loop as it is."
    if leader.gain_ms_ci is None:
        return "it took its turn with the loop as it is only once, which gives no noise to go by."
    gain = fmt.ms(leader.gain_ms, leader.gain_ms_ci)
    if leader.gain_ms_ci[1] < 0.0:
        return (
            f"taking turns with the loop as it is, it was slower, by "
            f"{fmt.ms(-leader.gain_ms, leader.gain_ms_ci)} a step{again}."
        )
    if leader.gain_ms_ci[0] <= 0.0:
        return (
            f"taking turns with the loop as it is, it gained {gain} a step{again}, which may be "
            "noise. Measure again with nothing else running, or longer (--budget)."
        )
    if others_advised:
        return (
            f"it gained {gain} a step in turns with the loop as it is{again}, and what is advised "
            "changes less, or was no slower beyond the noise in the same rounds."
        )
    if leader.gain_confirmed is False:
        return f"the {gain} a step that it gained in the rounds were not confirmed."
    return f"it gained {gain} a step in turns with the loop as it is{again}: too little to advise."


def _leader(report: Report) -> Trial | None:
    """The fastest trial of the loop's own work, where it is clearly faster than the loop."""
    if not report.trials or report.trials[0].row is not None:
        return None  # published rows are claims, not advice
    base, *others = report.trials
    ahead_ms = (1.0 - CLEAR_LEAD) * (base.compared_ms or 0.0)
    ahead = [t for t in others if _competes(t, base) and (t.compared_ms or 0.0) <= ahead_ms]
    return min(ahead, key=lambda t: t.compared_ms or 0.0, default=None)


def _competes(trial: Trial, base: Trial) -> bool:
    if trial.status != "ok" or trial.compared_ms is None or trial.row is not None:
        return False
    if (trial.hardware, trial.group) != (base.hardware, base.group):
        return False
    changed = Settings(**{k: v for k, v in trial.settings.items() if k in AXES_BY_NAME})
    other_work = trial.changes_numerics and changed.numerics != ("num_threads",)
    clear = fmt.is_measured_well(trial.step_ms, trial.step_ms_ci)
    return clear and bool(changed.changed()) and not changed.probes and not other_work


def _is_advised(trial: Trial, advised: tuple[Recommendation, ...]) -> bool:
    rows = {(r.setting, r.to) for r in advised}
    return all((k, v) in rows for k, v in trial.settings.items() if v is not None)
