"""Where making a batch spends its time, as evidence: the hottest line and the slowest transform."""

from __future__ import annotations

from collections.abc import Iterable

from loaderdoctor import format as fmt
from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts.whole import Facts
from loaderdoctor.facts.workers import LineHotspot
from loaderdoctor.findings.model import EvidenceValue

# A line with less of the stack samples is not where the time goes; naming it would mislead. It is
# the lower end of the share's 95 % interval that must reach this.
MIN_NAMED_SHARE = 0.25
# The fewest stack samples at which a line that has half of them is surely above that: 9 of 18 are
# at least 26 %, 8 of 16 only 24.6 % (Clopper-Pearson). Fewer name no line, whatever they say: they
# come in bursts and when the interpreter lets go, which no binomial interval knows of.
MIN_STACK_SAMPLES = 18


_PHASES = {"fetch": "fetching", "collate": "collating", "sampler": "the sampler"}


def seen_enough(hotspots: Iterable[LineHotspot]) -> bool:
    """Whether these lines of one run surely are a quarter of making a batch, seen often enough."""
    phases: dict[str, list[LineHotspot]] = {}
    for hotspot in hotspots:
        phases.setdefault(hotspot.phase, []).append(hotspot)
    low = 0.0
    for of_phase in phases.values():
        if of_phase[0].of_stack_samples >= MIN_STACK_SAMPLES:
            n_stack_samples = sum(x.n_stack_samples for x in of_phase)
            low += (
                of_phase[0].phase_share
                * binomial_interval(n_stack_samples, of_phase[0].of_stack_samples)[0]
            )
    return low >= MIN_NAMED_SHARE


def hottest(facts: Facts, phase: str | None = None) -> LineHotspot | None:
    """The line that takes most (of one phase), where enough was seen to name one."""
    lines = facts.workers.lines if facts.workers is not None else ()
    counted = (x for x in lines if phase in (None, x.phase))
    hotspot = max(counted, key=lambda x: x.share, default=None)
    return hotspot if hotspot is not None and seen_enough((hotspot,)) else None


def where(hotspot: LineHotspot) -> str:
    """A line of code as text: `data.py:41 (__getitem__)`; a package's own with the package's name.

    Else torchvision's mnist.py would pass for the user's own. A recipe is the user's, wherever it
    lies.
    """
    path = hotspot.file.replace("\\", "/")
    name = path.rsplit("/", 1)[-1]
    if "/loaderdoctor/_recipes/" not in path:
        for place in ("/site-packages/", "/dist-packages/"):
            if place in path:
                name = path.rsplit(place, 1)[-1]
    return f"{name}:{hotspot.line} ({hotspot.function})"


def at(hotspot: LineHotspot) -> str:
    """`, at data.py:41 (__getitem__)`; empty where that line was seen too seldom to be named."""
    return f", at {where(hotspot)}" if seen_enough((hotspot,)) else ""


def line_evidence(hotspot: LineHotspot | None) -> dict[str, EvidenceValue]:
    """One hotspot with its stack samples; empty where there is none, or where too few saw it."""
    if hotspot is None or not seen_enough((hotspot,)):
        return {}
    return {
        "line": where(hotspot),
        "line_code": hotspot.code,
        "line_share": hotspot.share,
        "line_looks": hotspot.n_stack_samples,
        "looks": hotspot.of_stack_samples,
    }


def hot_evidence(facts: Facts) -> dict[str, EvidenceValue]:
    """The hottest line and the slowest transform of the dataset, as far as recorded."""
    workers = facts.workers
    if workers is None:
        return {}
    evidence = line_evidence(hottest(facts))
    if workers.transforms:
        name, ms_per_sample = max(workers.transforms, key=lambda x: x[1])
        evidence |= {
            "slowest_transform": name,
            "slowest_transform_ms_per_sample": ms_per_sample,
        }
    return evidence


def hot_sentence(facts: Facts) -> str:
    """The hottest line as a sentence after a space; empty where none was seen often enough."""
    hotspot = hottest(facts)
    return f" Hottest line: {where(hotspot)}, {seen(hotspot)} of making a batch." if hotspot else ""


def seen(*hotspots: LineHotspot) -> str:
    """A share with the stack samples behind it: `79 % (19 of 24 stack samples of fetching)`.

    Of the lines in the phase that has most of it.
    """
    phase = max(hotspots, key=lambda x: x.share).phase
    counted = [x for x in hotspots if x.phase == phase]
    n, of = sum(x.n_stack_samples for x in counted), counted[0].of_stack_samples
    share = fmt.share(sum(x.share for x in hotspots))
    return f"{share} ({n} of {of} stack samples of {_PHASES[phase]})"
