"""What the first screen says, in the words that terminal and page share: findings, and what-if."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loaderdoctor import format as fmt
from loaderdoctor.estimate import Interval
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.report.model import Ablation, Finding, PassBeforeTraining, Report, Step
from loaderdoctor.report.words import is_outside, wall_sentence
from loaderdoctor.report.words.changes import Change, changes_of
from loaderdoctor.setting_words import capitalised

# So much of a finding is read at a glance: three lines of 80 columns.
_MOST_LETTERS = 230
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z“`])")
_NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(?:\s?([a-zA-Z%µ]+))?")


def sentences(text: str) -> list[str]:
    """The text cut between its sentences."""
    return _SENTENCE.split(text)


def shortened(text: str, most: int = _MOST_LETTERS) -> str:
    """Whole sentences of it from the first on, one at least, as many as `most` letters hold."""
    kept = ""
    for sentence in sentences(text):
        longer = f"{kept} {sentence}".strip()
        if kept and len(longer) > most:
            break
        kept = longer
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Findings that are about the same time of the same loader: the first says what it is."""

    first: Finding
    aspects: tuple[Finding, ...]


def causes(findings: Sequence[Finding]) -> tuple[Cause, ...]:
    """In the report's order, each with the findings that are the same time seen otherwise."""
    groups: list[list[Finding]] = []
    for finding in findings:
        of = (group for group in groups if group[0].kind == finding.aspect_of)
        group = next(of, None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return tuple(Cause(first=first, aspects=tuple(rest)) for first, *rest in groups)


def share_words(finding: Finding) -> str:
    """`33 % of the step`; of all the time where the finding is about what lies outside."""
    outside = finding.kind in (Kind.TIME_OUTSIDE_STEPS.value, Kind.TRAINS_ELSEWHERE.value)
    return f"{fmt.share(finding.share)} of {'all the time' if outside else 'the step'}"


def evidence_words(finding: Finding) -> list[str]:
    """The figures behind a finding that its own sentences do not say already.

    report.json has all of them, and those that were not recorded, as null.
    """
    said = f"{finding.summary} {finding.advice or ''}"
    if finding.share is not None:
        said += f" {fmt.share(finding.share)}"
    told = frozenset(_figures(said))
    return [
        fmt.evidence(name, value)
        for name, value in finding.evidence.items()
        if value is not None and not _is_said(name, value, said, told)
    ]


def _is_said(name: str, value: Any, said: str, told: frozenset[tuple[str, str]]) -> bool:
    """Whether a sentence holds this figure."""
    if isinstance(value, str):
        return value.lower() in said.lower()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if f"{name}={value}" in said:
        return True
    shown = fmt.evidence(name, value)
    figure = next(reversed(list(_figures(shown))), None)
    if figure is None:
        return False
    text, unit = figure
    if not unit:  # a count: only next to the word for what is counted
        return any(one == text and word and (word == "of" or word in shown) for one, word in told)
    return any(one == text and word in (unit, "of") for one, word in told)


def _figures(text: str) -> Iterator[tuple[str, str]]:
    """(number, unit or the word behind it) of each figure in a text: `("14.6", "ms")`."""
    for number, word in _NUMBER.findall(text):
        yield number.replace(",", ""), word


def changes_and_ideas(report: Report) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """(changes with a number, ideas in words): an idea that goes before a change has a number too.

    But not where the verdict is about what lies outside the steps: there ideas have a list of
    their own, in front.
    """
    every = changes_of(report.recommendations)
    written = [i for i, change in enumerate(every) if not change.is_idea]
    ahead = written[0] if written and not is_outside(report) else 0
    numbered = tuple(x for i, x in enumerate(every) if i < ahead or not x.is_idea)
    return numbered, tuple(x for i, x in enumerate(every) if i >= ahead and x.is_idea)


# Kind of the warning that the loop's first windows were slower, and are in no figure of its step.
SLOW_START = "slow-start"
_WORTH_SAVING = "which is worth saving"
_PERHAPS_SAVED = "of which none is shown to be saved"
AS_ADVISED = "with change 1 below"  # the number that the list of changes gives it
NO_DIFFERENCE = "no difference to see"
# Less of an epoch's boundary is not named: the first batch's wait replaces a usual one.
OWN_PART = 0.2

ONE_ROUND = "One round: ± allows for what rounds of other loops were seen to differ by."
# What is not worth a line: a single batch to look at, a check of two.
MIN_SHOWN_S = 1.0


def boundary_sentence(step: Step, findings: Sequence[Finding] = ()) -> str | None:
    """What an epoch's end costs and whether that matters; None where it was not measured.

    A finding on it that is uncertain leaves open whether any of it can be saved.
    """
    if step.boundary_ms is None or step.within_epoch_ms is None or not step.steps_per_epoch:
        return None
    steps = fmt.count(step.steps_per_epoch, "step")
    epoch_ms = step.within_epoch_ms * step.steps_per_epoch + step.boundary_ms
    part = step.boundary_ms / epoch_ms if epoch_ms > 0 else 0.0
    startup = [f for f in findings if f.kind == Kind.WORKER_STARTUP_EACH_EPOCH.value]
    is_open = any(f.severity == Severity.UNCERTAIN.value for f in startup)
    matters = (
        (_PERHAPS_SAVED if is_open else _WORTH_SAVING)
        if part >= MODERATE_SHARE  # from here on a finding speaks of it
        else "too little to matter"
        if step.boundary_ms
        else "nothing to save"
    )
    of_loader = step.loader_boundary_ms
    own = ""  # what the loop does itself there: saving, drawing
    if of_loader is not None and step.boundary_ms - of_loader > OWN_PART * step.boundary_ms:
        own = f": {fmt.ms(of_loader)}; and the loop's own work between epochs"
    return (
        f"Of it {fmt.ms(step.within_epoch_ms)} within an epoch. Each new epoch (its iterator, the "
        f"start of workers, the first batch{own}) adds {fmt.ms(step.boundary_ms)}: "
        f"{fmt.share(part)} of an epoch of {steps}, {matters}."
    )


def step_notes(report: Report, *, brief: bool = False) -> tuple[str, ...]:
    """What must be known of the step's time, behind its shares. Brief: only what matters."""
    step = report.step
    roughly = None if fmt.is_measured_well(step.wall_ms, step.wall_ms_ci) else fmt.ROUGHLY
    boundary = boundary_sentence(step, report.findings)
    notes = (
        roughly,
        boundary if not brief or (boundary or "").endswith(f"{_WORTH_SAVING}.") else None,
        wall_sentence(report),
        before_training_sentence(report),
    )
    return tuple(note for note in notes if note is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The step as it is, or without something; `value_ms` None: not recorded."""

    words: str
    value_ms: float | None
    ci_ms: Interval | None
    is_now: bool
    gain: float | None  # as fast as now; None where it is now, or known roughly only
    applies: bool  # False: there is nothing to copy to
    differs: bool = True  # False: the noise allows to see no difference
    note: str = ""  # what `gain` is against, where that is not the first of these figures

    @property
    def figure(self) -> str:
        """In milliseconds with the noise, where that leaves a figure."""
        if self.value_ms is None:
            return fmt.NOT_RECORDED if self.applies else fmt.NOT_APPLICABLE
        if not self.differs:
            return NO_DIFFERENCE
        if fmt.is_measured_well(self.value_ms, self.ci_ms):
            return fmt.ms(self.value_ms, self.ci_ms)
        return fmt.step_ms(self.value_ms, self.ci_ms)


def what_if(report: Report) -> tuple[WhatIf, ...]:
    """Now, with the first change advised, with an instant loader, and with free copies too.

    Empty where nothing of it was measured. The change is the one that the verdict names.
    """
    ablation, advised = report.ablation, _as_advised(report)
    if ablation is not None:
        now, *others = [row for row in _rows(report, ablation) if row.applies]
    elif advised is not None and report.step.wall_ms is not None:
        others = []
        now = WhatIf(
            words="now",
            value_ms=report.step.wall_ms,
            ci_ms=report.step.wall_ms_ci,
            is_now=True,
            gain=None,
            applies=True,
        )
    else:
        return ()
    return (now, *([advised] if advised is not None else []), *others)


def _as_advised(report: Report) -> WhatIf | None:
    """The step with the first change, where that was measured and is faster."""
    change = next(iter(changes_of(report.recommendations)), None)
    gain = change.times_as_fast(report.step.wall_ms) if change is not None else None
    if change is None or gain is None or gain <= 1.0 or is_outside(report):
        return None
    compared = change.compared(report.step.wall_ms)
    return WhatIf(
        words=AS_ADVISED if change.per == "a step" else f"{AS_ADVISED}, {change.per}",
        value_ms=change.measured_ms,
        ci_ms=change.first.measured_ci_ms,
        is_now=False,
        gain=gain,
        applies=True,
        note=f"{fmt.ratio(gain)} as fast{compared}." if compared else "",
    )


def _rows(report: Report, ablation: Ablation) -> Iterator[WhatIf]:
    """Now, without the loader, without copies: to the scale of the step, where they may be one."""
    no_accelerator = report.shares is not None and report.shares.copy is None
    now, step = ablation.plain_ms, report.step
    is_step = _is_the_step(report, ablation)
    scale = step.wall_ms / now if is_step and step.wall_ms is not None else 1.0
    saves = False
    for words, value, name, part in (
        ("now", now, "plain_ms", ""),
        ("with an instant loader", ablation.no_input_ms, "no_input_ms", "input_ms"),
        ("and with free copies", ablation.no_copy_ms, "no_copy_ms", "copy_ms"),
    ):
        ci = ablation.ci_ms.get(name)
        value, ci = ablation.claims.get(name, (value, ci))
        _, cost_ci = ablation.claims.get(part, (0.0, None))
        is_now = name == "plain_ms"
        of_part = cost_ci or ablation.ci_ms.get(part)
        saves = not is_now and (saves or of_part is None or of_part[0] > 0.0)
        differs = cost_ci is None or cost_ci[0] > 0.0
        clear = value is not None and value > 0 and fmt.is_measured_well(value, ci)
        # What may cost nothing makes nothing faster: its figure stands there alone.
        gain = now / value if clear and differs and saves and value else None
        if is_now and is_step:
            value, ci = step.wall_ms, step.wall_ms_ci
        elif value is not None:
            value, ci = scale * value, (scale * ci[0], scale * ci[1]) if ci is not None else None
        yield WhatIf(
            words=words,
            value_ms=value,
            ci_ms=ci,
            is_now=is_now,
            gain=gain,
            applies=value is not None or not (no_accelerator and name == "no_copy_ms"),
            differs=differs,
        )


def _is_the_step(report: Report, ablation: Ablation) -> bool:
    """Whether the loop of the ablation's rounds and the report's step may be one loop in noise.

    Then there is one "now". Where the intervals lie apart the rounds met another loop, as of an
    epoch's end that is in the one and not in the other, and scaling would multiply that.
    """
    step = report.step
    if step.wall_ms is None or ablation.plain_ms <= 0.0:
        return False
    low, high = step.wall_ms_ci or (step.wall_ms, step.wall_ms)
    own_low, own_high = ablation.ci_ms.get("plain_ms") or (ablation.plain_ms, ablation.plain_ms)
    return low <= own_high and own_low <= high


def what_if_title(report: Report) -> str:
    """The heading: whose figures these are, where the verdict is about what lies outside."""
    return "What the step itself would be" if is_outside(report) else "What it would be"


def what_if_notes(report: Report, *, brief: bool = False) -> tuple[str, ...]:
    """What must be known of these figures: few rounds, and another "now" than the step's.

    Brief: only what keeps them from being taken for more than they are.
    """
    ablation, wall_ms, rows = report.ablation, report.step.wall_ms, what_if(report)
    notes = [capitalised(f"{row.words}: {row.note}") for row in rows if row.note]
    if ablation is None:
        return tuple(notes)
    if ablation.n_rounds == 1:
        notes.append(ONE_ROUND)
    if not all(row.differs for row in rows):
        notes.append("“no difference to see”: none that the noise of these rounds allows to see.")
    own = fmt.step_ms(ablation.plain_ms, ablation.ci_ms.get("plain_ms"))
    shown = fmt.step_ms(wall_ms, report.step.wall_ms_ci).partition(" ±")[0]
    differs = own.partition(" ±")[0] != shown and fmt.ms(wall_ms) != fmt.ms(ablation.plain_ms)
    rounds = fmt.count(ablation.n_rounds, "round")
    if wall_ms is not None and differs and not _is_the_step(report, ablation):
        slow = any(warning.kind == SLOW_START for warning in report.warnings)
        which = " but its slow first ones" if slow and report.command == "diagnose" else ""
        notes.append(
            f"“now” is of the {rounds} of this comparison alone; {fmt.ms(wall_ms)} above is of "
            f"all windows of the loop as it is{which}."
        )
    unmeasured = any(row.value_ms is None for row in rows)
    if unmeasured and ablation.reason:
        notes.append(f"Free copies were not measured: {ablation.reason}.")
    if brief:
        return tuple(notes)
    if differs and _is_the_step(report, ablation):
        notes.append(
            f"To the scale of the step above; in the {rounds} of this comparison the loop took "
            f"{own}."
        )
    of_step = fmt.is_measured_well(wall_ms, report.step.wall_ms_ci)  # else it is said there
    if of_step and any(not fmt.is_measured_well(r.value_ms, r.ci_ms) for r in rows if r.differs):
        notes.append(fmt.ROUGHLY)
    if ablation.reason and not unmeasured:
        notes.append(ablation.reason)
    for loader, cost_ms in ablation.by_loader_ms.items():
        notes.append(f"{loader} alone costs {fmt.ms(cost_ms)} a step.")
    return tuple(notes)


def other_loader_sentences(report: Report) -> tuple[str, ...]:
    """What is known of each loader whose batches are not those that figures are given for."""
    roles = {loader.id: loader.role for loader in report.loaders}
    said = []
    for other in report.other_workers:
        of_step = roles.get(other.loader or "") == "train"  # as in zip(images, labels)
        feeds = "feeds the step too" if of_step else "does not feed the step"
        said.append(
            f"{other.loader or 'Another loader'} {feeds}: {fmt.ms(other.batch_ms)} a batch."
        )
    return tuple(said)


def listed(evidence: Mapping[str, Any]) -> list[str]:
    """Figures with their names, those that were recorded."""
    return [fmt.evidence(name, value) for name, value in evidence.items() if value is not None]


def before_training_sentence(report: Report) -> str | None:
    """`Before training began: 25.4 s in 8 passes over train.py:22 …`; None where it was short."""
    shown = [one for one in report.before_training if (one.took_s or 0.0) >= MIN_SHOWN_S]
    if not shown:
        return None
    when = "Before training began" if report.trains else "Before that"
    return f"{when}: {'; '.join(map(_words, shown))}."


def _words(one: PassBeforeTraining) -> str:
    batches = fmt.count(one.n_batches, "batch", "batches")
    took = f"{fmt.seconds(one.took_s)} in"
    if one.skips:
        return f"{took} {batches} of {one.loader} that were thrown away ({one.site})"
    passes = "a pass" if one.n_passes == 1 else f"{one.n_passes:,} passes"
    model = ", with a model" if one.calls_model else ""
    return f"{took} {passes} over {one.loader} ({one.site}; {batches}{model})"
