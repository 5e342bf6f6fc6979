"""Where looks at the thread that makes batches fell: counts by line, and by the leaf below it."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Iterable

from loaderdoctor.facts import Leaf, LineSpot
from loaderdoctor.instrument.worker_records import LineCount

MAX_LINES = 20
MAX_LEAVES = 20  # of a line


def line_spots(looks: Iterable[LineCount]) -> tuple[LineSpot, ...]:
    """The places where most looks fell, most first; each carries the number of all looks."""
    places: Counter[tuple[str, int, str]] = Counter()
    leaves: defaultdict[tuple[str, int, str], Counter[tuple[str, str]]] = defaultdict(Counter)
    for look in looks:
        place = (look.file, look.line, look.function)
        places[place] += look.count
        leaves[place][look.leaf_file, look.leaf_function] += look.count
    total = sum(places.values())
    return tuple(
        LineSpot(
            file=file,
            line=line,
            function=function,
            code=linecache.getline(file, line).strip() or None,
            n_looks=count,
            of_looks=total,
            leaves=tuple(
                Leaf(file=leaf_file, function=leaf_function, n_looks=n)
                for (leaf_file, leaf_function), n in leaves[file, line, function].most_common(
                    MAX_LEAVES
                )
            ),
        )
        for (file, line, function), count in places.most_common(MAX_LINES)
    )
