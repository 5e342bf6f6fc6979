"""Where making a batch spends its time, as evidence: the hot line and the slowest transform."""

from __future__ import annotations

from collections.abc import Iterable

from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts.evidence import Facts, LineSpot
from loaderdoctor.findings.model import EvidenceValue
from loaderdoctor.findings.wording import percent

# A line with less of the looks is not where the time goes; naming it would mislead. It is the lower
# end of the share's 95 % interval that must reach this.
MIN_NAMED_SHARE = 0.25
# The fewest looks at which a line that has half of them is surely above that: 9 of 18 are at least
# 26 %, 8 of 16 only 24.6 % (Clopper-Pearson). Fewer name no line, whatever they say: looks come in
# bursts and when the interpreter lets go, which no binomial interval knows of.
MIN_LOOKS = 18


_PHASES = {"fetch": "samples", "collate": "collating", "sampler": "the sampler"}


def seen_enough(spots: Iterable[LineSpot]) -> bool:
    """Whether these lines of one run surely are a quarter of making a batch, by enough looks."""
    phases: dict[str, list[LineSpot]] = {}
    for spot in spots:
        phases.setdefault(spot.phase, []).append(spot)
    low = 0.0
    for of_phase in phases.values():
        if of_phase[0].of_looks >= MIN_LOOKS:
            n_looks = sum(x.n_looks for x in of_phase)
            low += of_phase[0].phase_share * binomial_interval(n_looks, of_phase[0].of_looks)[0]
    return low >= MIN_NAMED_SHARE


def hottest(facts: Facts, phase: str | None = None) -> LineSpot | None:
    """The line that takes most (of one phase), where enough was seen to name one."""
    lines = facts.workers.lines if facts.workers is not None else ()
    counted = (x for x in lines if phase in (None, x.phase))
    spot = max(counted, key=lambda x: x.share, default=None)
    return spot if spot is not None and seen_enough((spot,)) else None


def where(spot: LineSpot) -> str:
    """A line of code as text: `data.py:41 (__getitem__)`; a package's own with the package's name.

    Else torchvision's mnist.py would pass for the user's own. A recipe is the user's, wherever it
    lies.
    """
    path = spot.file.replace("\\", "/")
    name = path.rsplit("/", 1)[-1]
    if "/loaderdoctor/_recipes/" not in path:
        for place in ("/site-packages/", "/dist-packages/"):
            if place in path:
                name = path.rsplit(place, 1)[-1]
    return f"{name}:{spot.line} ({spot.function})"


def at(spot: LineSpot) -> str:
    """`, at data.py:41 (__getitem__)`; empty where that line was seen too seldom to be named."""
    return f", at {where(spot)}" if seen_enough((spot,)) else ""


def line_evidence(spot: LineSpot | None) -> dict[str, EvidenceValue]:
    """One hot line with its looks; empty where there is none, or where too few saw it."""
    if spot is None or not seen_enough((spot,)):
        return {}
    return {
        "line": where(spot),
        "line_code": spot.code,
        "line_share": spot.share,
        "line_looks": spot.n_looks,
        "looks": spot.of_looks,
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
    spot = hottest(facts)
    return f" Hottest line: {where(spot)}, {seen(spot)} of making a batch." if spot else ""


def seen(*spots: LineSpot) -> str:
    """A share with the looks behind it: `79 % (19 of 24 looks at samples)`.

    Of the lines in the phase that has most of it.
    """
    phase = max(spots, key=lambda x: x.share).phase
    counted = [x for x in spots if x.phase == phase]
    n_looks, of_looks = sum(x.n_looks for x in counted), counted[0].of_looks
    share = sum(x.share for x in spots)
    return f"{percent(share)} ({n_looks} of {of_looks} looks at {_PHASES[phase]})"
