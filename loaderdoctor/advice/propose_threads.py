"""Fewer intra-op threads for the loop itself, where its own stand in one another's way."""

from __future__ import annotations

from collections.abc import Mapping

from loaderdoctor import format as fmt
from loaderdoctor.advice.plan import Candidate
from loaderdoctor.advice.proposal import proposal
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import has_accelerator
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.threads import fewer, threads_at_work
from loaderdoctor.instrument.wire.records import LoaderRecord

CAUTION = (
    "With another number of threads, sums are made in another order: results may differ in their "
    "last bits. On a machine with more CPUs free, more threads may be right again."
)


def fewer_threads(
    facts: Facts, loader: LoaderRecord, found: Mapping[Kind, Finding]
) -> list[Candidate]:
    """Where threads were seen to fight; without an accelerator also where several are at work.

    Threads that wait for one another by spinning look like threads at work, so only a trial tells:
    a loop that rightly uses all its CPUs is tried too, and then nothing is said.
    """
    finding = found.get(Kind.THREAD_OVERSUBSCRIPTION)
    fights = finding is not None and finding.evidence.get("threads_of") == "loop"
    if not fights and (has_accelerator(facts) or not threads_at_work(facts)):
        return []
    predicted, how = None, "nothing: only a trial can tell"
    if fights and finding is not None and finding.share is not None and facts.step_ms is not None:
        predicted = facts.step_ms * (1.0 - finding.share)
        how = f"the {fmt.share(finding.share)} of its time that threads wait for a CPU"
    made = [
        proposal(
            loader,
            facts,
            (Kind.THREAD_OVERSUBSCRIPTION,),
            {"num_threads": n},
            predicted,
            how,
            CAUTION,
        )
        for n in fewer(facts)
    ]
    return [candidate for candidate in made if candidate is not None]
