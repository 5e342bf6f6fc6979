"""What making a batch consists of, and what a step saves where a part of it falls away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.advice.candidates import CodeAdvice
from loaderdoctor.facts.whole import Facts
from loaderdoctor.facts.workers import WorkerFacts
from loaderdoctor.findings.capacity import batch_ms, by_ablation
from loaderdoctor.findings.exposure import Cost, num_workers
from loaderdoctor.findings.input_parts import cost_beyond_wait, least_rest_ms, making_cost, most_of
from loaderdoctor.findings.model import Kind
from loaderdoctor.instrument.wire.records import LoaderRecord


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
