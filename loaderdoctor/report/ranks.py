"""Ranks of a job as report.json has them, and the columns in which every view shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from loaderdoctor import format as fmt
from loaderdoctor.facts.whole import RankFacts, RankStep
from loaderdoctor.report.build import shares_of, step_of_plain
from loaderdoctor.report.model import Rank, Step

# A terminal shows so many; report.json holds them all.
MAX_SHOWN = 16
_PARTS = {
    "input": "input",
    "copy": "copy",
    "compute": "compute",
    "communication": "comm.",
    "host": "host",
}
KEY = "ms a step; waits: for later ranks, in collectives; comm.: communication"


def rank_rows(
    ranks: Sequence[RankFacts], definition: str, measured: Sequence[RankStep] = ()
) -> tuple[Rank, ...]:
    """In order of rank: those of the traces, with steps measured without the profiler if given."""
    plain = {one.rank: one for one in measured}
    traced = {one.rank: one for one in ranks}
    return tuple(
        _row(rank, traced.get(rank), plain.get(rank), definition)
        for rank in sorted({*plain, *traced})
    )


def _row(rank: int, one: RankFacts | None, plain: RankStep | None, definition: str) -> Rank:
    step = step_of_plain(plain.step) if plain is not None and plain.step is not None else None
    if one is None:
        none = Step(count=0, wall_ms=None, wall_ms_ci=None, definition=definition)
        host = plain.host if plain is not None else ""
        return Rank(rank=rank, host=host, step=step or none, shares=None, peer_wait_ms=None)
    return Rank(
        rank=rank,
        host=one.host or (plain.host if plain is not None else ""),
        step=step or _step(one, definition),
        shares=shares_of(one.shares),
        peer_wait_ms=one.peer_wait_ms,
        own_ms=one.own_ms if math.isfinite(one.own_ms) else None,
        trace=one.source,
    )


def outliers_first(ranks: Sequence[Rank]) -> list[Rank]:
    """Ranks whose own time is farthest from the median first; equal ones by number."""
    known = [r.own_ms for r in ranks if r.own_ms is not None]
    middle = median(known) if known else 0.0

    def distance(rank: Rank) -> float:
        return -abs(rank.own_ms - middle) if rank.own_ms is not None else 0.0

    return sorted(ranks, key=lambda r: (distance(r), r.rank))


# A heading and how its cell is read from a rank.
Column = tuple[str, Callable[[Rank], str]]


def rank_columns(ranks: Sequence[Rank]) -> list[Column]:
    """Columns for these ranks, in milliseconds a step; parts that nobody has are left out."""
    columns: list[Column] = [("rank", lambda r: str(r.rank))]
    if len({r.host for r in ranks}) > 1:
        columns.append(("machine", lambda r: fmt.plain(r.host)))
    columns.append(("step", lambda r: _figure(r.step.wall_ms)))
    if any(r.peer_wait_ms is not None for r in ranks):
        columns.append(("waits", lambda r: _figure(r.peer_wait_ms)))
    return columns + [
        (heading, _part(name))
        for name, heading in _PARTS.items()
        if any(_part_ms(r, name) is not None for r in ranks)
    ]


def _part(name: str) -> Callable[[Rank], str]:
    return lambda rank: _figure(_part_ms(rank, name))


def _part_ms(rank: Rank, name: str) -> float | None:
    if rank.shares is None or rank.own_ms is None:
        return None
    share: float | None = getattr(rank.shares, name)
    return None if share is None else share * rank.own_ms


def _figure(value_ms: float | None) -> str:
    return "–" if value_ms is None else fmt.ms(value_ms).removesuffix(" ms")


def _step(one: RankFacts, definition: str) -> Step:
    return Step(
        count=one.n_steps,
        wall_ms=one.wall_ms if math.isfinite(one.wall_ms) else None,
        wall_ms_ci=None,
        definition=definition,
    )
