"""Where making a batch spends its time, as evidence: the hot line and the slowest transform."""

from __future__ import annotations

from loaderdoctor.facts import Facts, LineSpot
from loaderdoctor.findings.model import EvidenceValue
from loaderdoctor.findings.wording import percent

# A line with less of the samples is not where the time goes; naming it would mislead.
MIN_NAMED_SHARE = 0.25


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


def line_evidence(spot: LineSpot | None) -> dict[str, EvidenceValue]:
    """One hot line; empty where none was recorded."""
    if spot is None:
        return {}
    return {"line": where(spot), "line_code": spot.code, "line_share": spot.share}


def hot_evidence(facts: Facts) -> dict[str, EvidenceValue]:
    """The hottest line and the slowest transform of the dataset, as far as recorded."""
    workers = facts.workers
    if workers is None:
        return {}
    evidence = line_evidence(max(workers.lines, key=lambda x: x.share, default=None))
    if workers.transforms:
        name, ms_per_sample = max(workers.transforms, key=lambda x: x[1])
        evidence |= {
            "slowest_transform": name,
            "slowest_transform_ms_per_sample": ms_per_sample,
        }
    return evidence


def hot_sentence(facts: Facts) -> str:
    """The hottest line as a sentence after a space; empty where no line stands out."""
    lines = facts.workers.lines if facts.workers is not None else ()
    hottest = max(lines, key=lambda x: x.share, default=None)
    if hottest is None or hottest.share < MIN_NAMED_SHARE:
        return ""
    return f" Hottest line: {where(hottest)}, {percent(hottest.share)} of making a batch."
