"""What a prescription is made of: settings to try, code to change, and what is not advised.

Of code that changes how batches are made: what making one consists of, and what a step saves where
a part of it falls away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from loaderdoctor import format as fmt
from loaderdoctor.advice.code import loader_arguments
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import WorkerFacts
from loaderdoctor.findings import Finding, Kind
from loaderdoctor.findings.capacity import batch_ms, by_ablation
from loaderdoctor.findings.exposure import Cost, num_workers
from loaderdoctor.findings.input_parts import cost_beyond_wait, least_rest_ms, making_cost, most_of
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings, Value

_KEPT_COPIES = (
    "Workers keep their copy of the dataset: changes the script makes to it between epochs no "
    "longer reach them."
)
# What a prediction rests on: windows with ready batches, or where the step's time was seen to go.
PredictedFrom = Literal["ablation", "trace"]

# A change of code is more to write and to keep than an argument of the loader: it goes first where
# it takes so much of what the best settings take, or less.
MUCH_FASTER = 2 / 3
# Axes that are tried with code of ours that is not written for the script: the idea keeps its
# bound, and no figure.
IDEAS = frozenset({"reuse_buffers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings worth trying: a prediction until a trial has measured them."""

    settings: Settings  # only what changes against the user's own
    kinds: tuple[Kind, ...]  # the findings it answers
    loader: str  # LoaderRecord.id
    predicted_step_ms: float | None  # None: only a trial can tell
    prediction: str  # how the prediction was made, or why there is none
    predicted_from: PredictedFrom = "trace"
    caution: str | None = None
    # Written into the dataset's code: tried next to the settings, and never added to them.
    in_code: bool = False
    # False: not in the running loop (process-wide, may crash or hang it, or needs data again that
    # can't be had twice); a child process or the user's next run can.
    live: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeAdvice:
    """A change of the user's code that no setting makes.

    `code` is written in the script's own names and fits its place; None: there is only the `idea`.
    """

    kind: Kind | None  # the finding it answers; None: the verdict alone
    title: str
    idea: str
    code: str | None
    bound_ms: float | None  # at most this much of a step can be gained; None: not known
    predicted_from: PredictedFrom | None  # where the bound comes from; None: not known
    caution: str | None = None
    # The axis that tries it in the running loop, where one does; `cache+batched`: both together.
    axis: str | None = None
    keeps_samples: bool = False  # each is made once: no dataset may be so whose samples vary
    command: str | None = None  # a line for a shell that does it
    one_line: bool = False  # a line or two, where others rewrite a dataset or the loop
    evidence: str | None = None  # a sentence: what was recorded that speaks for it

    @property
    def axes(self) -> frozenset[str]:
        """The axes that try it; none where nothing does."""
        return frozenset(self.axis.split("+")) if self.axis is not None else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAdvised:
    """A setting not advised because it would break the user's run, and why."""

    setting: str  # axis name
    settings: Settings
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prescription:
    """Everything to do about the findings. Nothing in `candidates` and `advice`: no change."""

    candidates: tuple[Candidate, ...]  # safe ones, as they are to be tried; those in code last
    not_advised: tuple[NotAdvised, ...]
    advice: tuple[CodeAdvice, ...]
    # What to do about the dataset where settings leave the loop waiting; largest saving first.
    routes: tuple[CodeAdvice, ...] = ()
    # Functions of the dataset's code that draw at random; whether its samples vary, a trial tells.
    randomness: tuple[str, ...] = ()

    @property
    def live_settings(self) -> tuple[Candidate, ...]:
        """What the running loop can try of its settings, in the order of `candidates`."""
        return tuple(c for c in self.candidates if c.live and not c.in_code)

    @property
    def live_code(self) -> tuple[Candidate, ...]:
        """What it can try of code, best prediction first, ideas last: time may suffice for one."""
        code = (c for c in self.candidates if c.live and c.in_code)
        return tuple(sorted(code, key=lambda c: (_is_idea(c), _predicted_ms(c))))

    def code_promises_more(self, step_ms: float | None) -> bool:
        """Whether code is predicted to take so much less than any settings that it is tried first.

        Pictures copied as floats, 40 and 50 ms a step on an H200: in twice the budget pinning (44
        ms, predicted) and more workers (22 ms) were looked at twice, bytes (1 to 4 ms) never.
        """
        told = (c for c in self.live_code if not _is_idea(c))
        code_ms = min(map(_predicted_ms, told), default=math.inf)
        most_ms = min(map(_predicted_ms, self.live_settings), default=math.inf)
        if math.isinf(most_ms):  # nothing is promised: only a trial can tell
            most_ms = step_ms or 0.0
        return code_ms <= MUCH_FASTER * most_ms


def _is_idea(candidate: Candidate) -> bool:
    return not IDEAS.isdisjoint(candidate.settings.changed())


def _predicted_ms(candidate: Candidate) -> float:
    predicted = candidate.predicted_step_ms
    return math.inf if predicted is None else predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What candidates are proposed for: the loop, its loader as it is, and what was found."""

    facts: Facts
    loader: LoaderRecord
    found: Mapping[Kind, Finding]

    def explained_ms(self, kind: Kind) -> float | None:
        """What of a step the finding of this kind explains; None without finding, share or step."""
        finding, step_ms = self.found.get(kind), self.facts.step_ms
        if finding is None or finding.share is None or step_ms is None:
            return None
        return finding.share * step_ms

    def propose(
        self,
        *kinds: Kind,
        changes: Mapping[str, Value],
        predicted_ms: float | None,
        how: str,
        caution: str | None = None,
    ) -> list[Candidate]:
        """The candidate that answers these kinds, `how` it was predicted being said with it.

        Of `changes` only what differs from the settings of any loader that feeds the step, since
        they are made for all of them; empty where nothing does.
        """
        loader = self.loader
        have = loader.settings.as_dict()
        for other in self.facts.feeding:
            theirs = other.settings.as_dict()
            have |= {k: theirs[k] for k, v in changes.items() if theirs[k] != v}
        if self.facts.transfers and all(t.non_blocking for t in self.facts.transfers):
            have["non_blocking"] = True
        settings = Settings(**{k: v for k, v in changes.items() if v != have[k]})  # type: ignore[arg-type]
        if not settings.changed():
            return []
        whole = settings.over(loader.settings)
        threads_and_workers = whole.background not in (None, "off") and bool(whole.num_workers)
        in_data = bool(
            {"resident", "cache", "uint8", "batched", "device_decode"} & set(settings.changed())
        )
        in_thread = bool(settings.threads) or settings.background in ("host", "device")
        reopens = bool(loader_arguments(settings)) or in_data or in_thread
        cautions = [caution] if caution else []
        if settings.persistent_workers:
            cautions.append(_KEPT_COPIES)
        if reopens and loader.safety.one_pass:
            reason = loader.safety.one_pass_reason or "its data can't be read twice"
            cautions.append(f"Not tried in this run: {reason}.")
        candidate = Candidate(
            settings=settings,
            kinds=kinds,
            loader=loader.id,
            predicted_step_ms=predicted_ms,
            prediction=how,
            predicted_from="ablation" if by_ablation(self.facts) else "trace",
            caution=" ".join(cautions) or None,
            live=not (
                settings.start_method or threads_and_workers or (reopens and loader.safety.one_pass)
            ),
        )
        return [candidate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What making a batch consists of, as shares of it."""

    facts: Facts
    loader: LoaderRecord
    workers: WorkerFacts
    cost: Cost
    n_samples: float  # in a batch

    @property
    def fetch(self) -> float:
        """Making the samples."""
        return min(1.0, self.workers.fetch_ms / self.workers.batch_ms)

    @property
    def sample_ms(self) -> float:
        """The mean sample."""
        return self.workers.fetch_ms / self.n_samples

    def transforms(self, names: Callable[[str], bool]) -> float:
        """The transforms that `names` picks, as they were timed; never more than the samples."""
        timed_ms = sum(cost for name, cost in self.workers.transforms if names(bare(name)))
        return min(self.fetch, timed_ms * self.n_samples / self.workers.batch_ms)

    def saved_ms(self, part: float) -> float:
        """At most so much of a step is saved where that part of a batch falls away.

        What making batches costs counts by the upper end of its interval, the rest by its lower.
        """
        n, whole_ms = num_workers(self.facts), batch_ms(self.facts)
        saved = self.cost.ms * part
        if n and whole_ms is not None:
            # A pool that is a little short needs only a little less work to keep up.
            saved = min(self.cost.ms, max(part * whole_ms / n, saved))
        saved *= most_of(self.facts, "input")
        return min(saved, self.cost.step_ms - (least_rest_ms(self.facts) or 0.0))

    def advice(
        self,
        *,
        title: str,
        idea: str,
        part: float,
        evidence: str,
        code: str | None = None,
        axis: str | None = None,
        caution: str | None = None,
        keeps_samples: bool = False,
        replaces: Kind | None = None,
        own_ms: float = 0.0,
        most: float | None = None,
    ) -> CodeAdvice:
        """Advice that does away with that part of a batch; `replaces` the advice of that kind.

        `own_ms`: what it does itself in the loop, each step, at the least. `most`: what the part
        may be at most, where it is estimated from stack samples.
        """
        saved_ms = max(0.0, self.saved_ms(part if most is None else max(part, most)) - own_ms)
        whole = fmt.ms(self.cost.step_ms)
        return CodeAdvice(
            kind=replaces,
            title=title,
            idea=idea,
            code=code,
            bound_ms=saved_ms,
            predicted_from="ablation" if by_ablation(self.facts) else "trace",
            caution=caution,
            axis=axis,
            keeps_samples=keeps_samples,
            evidence=f"At most {fmt.ms(saved_ms)} of the step's {whole}. {evidence}",
        )


def making_of(facts: Facts) -> Making | None:
    """Of the main loader; None where making batches costs nothing, or was not recorded."""
    workers, loader = facts.workers, facts.main_loader
    cost = making_cost(facts) or cost_beyond_wait(facts)
    if workers is None or loader is None or cost is None or loader.kind == "foreign":
        return None
    n_samples = loader.batch_size or workers.n_samples / max(1, workers.n_batches)
    if workers.batch_ms <= 0 or not n_samples:
        return None
    return Making(facts=facts, loader=loader, workers=workers, cost=cost, n_samples=n_samples)


def bare(name: str) -> str:
    """A transform's name without the number that tells two of them apart."""
    return name.partition(" #")[0]
