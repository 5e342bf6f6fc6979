"""Where stack samples found the thread that makes batches: counts by line, and by leaf below."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from loaderdoctor.facts.workers import Leaf, LineHotspot
from loaderdoctor.instrument.wire.worker_log import LineCount

MAX_LINES = 20
MAX_LEAVES = 20  # of a line

_Place = tuple[str, str, int, str]  # phase, file, line, function


def line_hotspots(
    stack_samples: Iterable[LineCount], phase_ms: Mapping[str, float]
) -> tuple[LineHotspot, ...]:
    """The places where most time goes, most first; each carries the stack samples of its phase.

    `phase_ms` is what each phase of a batch takes; one without a time counts by its stack samples.
    """
    places: Counter[_Place] = Counter()
    leaves: defaultdict[_Place, Counter[tuple[str, str]]] = defaultdict(Counter)
    for stack_sample in stack_samples:
        place = (stack_sample.phase, stack_sample.file, stack_sample.line, stack_sample.function)
        places[place] += stack_sample.count
        leaves[place][stack_sample.leaf_file, stack_sample.leaf_function] += stack_sample.count
    totals: Counter[str] = Counter()
    for place, count in places.items():
        totals[place[0]] += count
    shares = _phase_shares(totals, phase_ms)
    hotspots = [
        LineHotspot(
            file=file,
            line=line,
            function=function,
            code=linecache.getline(file, line).strip() or None,
            n_stack_samples=count,
            of_stack_samples=totals[phase],
            phase=phase,  # type: ignore[arg-type]  # the sampler's words
            phase_share=shares[phase],
            leaves=tuple(
                Leaf(file=leaf_file, function=leaf_function, n_stack_samples=n)
                for (leaf_file, leaf_function), n in leaves[
                    phase, file, line, function
                ].most_common(MAX_LEAVES)
            ),
        )
        for (phase, file, line, function), count in places.most_common()
    ]
    return tuple(sorted(hotspots, key=lambda x: -x.share)[:MAX_LINES])


def _phase_shares(totals: Counter[str], phase_ms: Mapping[str, float]) -> dict[str, float]:
    """Of the time of the phases seen; by stack samples where a phase's time was not recorded."""
    weights = {phase: phase_ms.get(phase, 0.0) for phase in totals}
    if not all(weights.values()):
        weights = dict(totals)
    whole = sum(weights.values())
    return {phase: weight / whole for phase, weight in weights.items()}
