"""Where making a batch spends its time, as evidence: the hottest line and the slowest transform."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from loaderdoctor import format as fmt
from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts.whole import Facts
from loaderdoctor.facts.workers import Leaf, LineHotspot
from loaderdoctor.findings.model import EvidenceValue

# A line with less of the stack samples is not where the time goes; naming it would mislead. It is
# the lower end of the share's 95 % interval that must reach this.
MIN_NAMED_SHARE = 0.25
# The fewest stack samples at which a line that has half of them is surely above that: 9 of 18 are
# at least 26 %, 8 of 16 only 24.6 % (Clopper-Pearson). Fewer name no line, whatever they say: they
# come in bursts and when the interpreter lets go, which no binomial interval knows of.
MIN_STACK_SAMPLES = 18
# A library is said in place of the function that calls it where it has this much of its time.
LIBRARY_PART = 0.8

_INSTALLED = re.compile(r"-packages/(?P<name>\w+)[/.]")
PHASES = {"fetch": "fetching", "collate": "collating", "sampler": "the sampler"}


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


def most_share(hotspots: Iterable[LineHotspot]) -> float:
    """Of making a batch, the most that these lines may take: the upper end of 95 % intervals."""
    counts: dict[str, tuple[float, int, int]] = {}
    for hotspot in hotspots:
        _, n, _ = counts.get(hotspot.phase, (0.0, 0, 0))
        of = hotspot.of_stack_samples
        counts[hotspot.phase] = hotspot.phase_share, min(n + hotspot.n_stack_samples, of), of
    most = (share * binomial_interval(n, of)[1] for share, n, of in counts.values())
    return min(1.0, sum(most))


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
    if hotspot is not None:
        return f" Hottest line: {where(hotspot)}, {seen(hotspot)} of making a batch."
    spread = spread_words(facts.workers.lines) if facts.workers is not None else None
    return f" Most of it: {spread}." if spread is not None else ""


def spread_words(lines: Sequence[LineHotspot]) -> str | None:
    """What lines have in common of which none was seen often enough to be named alone.

    `data.py (Rows.__getitem__), 79 % (19 of 24 stack samples of fetching)`, or pandas, in the place
    of a function. None where one line is named, or no sum is seen enough either.
    """
    if any(seen_enough((line,)) for line in lines):
        return None
    functions: defaultdict[str, list[LineHotspot]] = defaultdict(list)
    libraries: defaultdict[str, list[LineHotspot]] = defaultdict(list)
    for line in lines:
        path = line.file.replace("\\", "/").rpartition("/")[2]
        functions[f"{path} ({line.function})"].append(line)
        for leaf in line.leaves:
            if (package := _package(leaf)) is not None:
                part = replace(line, n_stack_samples=leaf.n_stack_samples, leaves=())
                libraries[package].append(part)
    function, library = (_largest(sums) for sums in (functions, libraries))
    if library is not None and _share(library) >= LIBRARY_PART * _share(function):
        function, library = library, function
    for one in (function, library):
        if one is not None and seen_enough(one[1]):
            return f"{one[0]}, {seen(*one[1])}"
    return None


_Sum = tuple[str, list[LineHotspot]]


def _largest(sums: Mapping[str, list[LineHotspot]]) -> _Sum | None:
    return max(sums.items(), key=_share, default=None)


def _share(one: _Sum | None) -> float:
    return sum(line.share for line in one[1]) if one is not None else 0.0


def _package(leaf: Leaf) -> str | None:
    """The installed package whose function it is, torch's own left out."""
    found = _INSTALLED.search(leaf.file.replace("\\", "/"))
    return None if found is None or found["name"] == "torch" else found["name"]


def seen(*hotspots: LineHotspot) -> str:
    """A share with the stack samples behind it: `79 % (19 of 24 stack samples of fetching)`.

    Of the lines in the phase that has most of it.
    """
    phase = max(hotspots, key=lambda x: x.share).phase
    counted = [x for x in hotspots if x.phase == phase]
    n, of = sum(x.n_stack_samples for x in counted), counted[0].of_stack_samples
    share = fmt.share(sum(x.share for x in hotspots))
    return f"{share} ({n} of {of} stack samples of {PHASES[phase]})"
