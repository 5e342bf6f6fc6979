"""Which of several traces are a job's ranks, and which number each has.

Ranks are different processes of one time. Several captures of one process, of one rank, or of runs
one after the other are none of each other: the last is kept, and what is left out is told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderdoctor.attribution.ranks import RankTrace

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d+)", re.IGNORECASE)
# What begins before 2001 counts from a start of its own: such times of two files don't compare.
_EPOCH_NS = 1_000_000_000 * 10**9
# How far the clocks of two machines may be apart; those kept by NTP are within milliseconds.
CLOCKS_APART_NS = 60 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """The traces kept, each one's rank, and what is to be told of the others."""

    traces: tuple[RankTrace, ...]
    ranks: tuple[int, ...]
    named: bool = False  # whether the traces or their names say that they are ranks
    uncertain: tuple[str, ...] = ()  # what is not known of the ranks
    left_out: tuple[str, ...] = ()  # captures that are no rank of this job at this time


def numbered(read: Sequence[RankTrace]) -> Numbered:
    """The ranks among these traces: by what they state, else by their names, else by their times.

    Ranks that are told need no times. Where one has several captures, its last counts.
    """
    names = [Path(trace.source).name for trace in read]
    stated = _all_known([trace.rank for trace in read])
    marked = _all_known([_rank_in_name(name) for name in names])
    for ranks in (stated, marked):
        if ranks is not None and len(set(ranks)) == len(ranks):
            return Numbered(traces=tuple(read), ranks=tuple(ranks), named=True)
    ranks = stated or marked
    return _untold(read) if ranks is None else _last_of_each(read, ranks)


def ranks_in_names(names: Sequence[str]) -> list[int] | None:
    """Ranks from file names like `trace_rank3.json.gz`; None where not each has its own."""
    ranks = _all_known([_rank_in_name(name) for name in names])
    return ranks if ranks is not None and len(set(ranks)) == len(names) else None


def numbers_in_names(names: Sequence[str]) -> list[int] | None:
    """Numbers in the names that count the files, as in `worker3.pt.trace.json`; None without."""
    numbers = [[int(n) for n in re.findall(r"\d+", name)] for name in names]
    for place in range(min(map(len, numbers), default=0)):
        ranks = [found[place] for found in numbers]
        # Process ids and times differ too; ranks are small.
        if len(ranks) > 1 and len(set(ranks)) == len(ranks) and max(ranks) <= 2 * len(ranks):
            return ranks
    return None


def _rank_in_name(name: str) -> int | None:
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match is not None else None


def _all_known(ranks: Sequence[int | None]) -> list[int] | None:
    known = [rank for rank in ranks if rank is not None]
    return known if known and len(known) == len(ranks) else None


def _last_of_each(read: Sequence[RankTrace], ranks: Sequence[int]) -> Numbered:
    latest: dict[int, RankTrace] = {}
    for trace, rank in zip(read, ranks, strict=True):
        if rank not in latest or trace.start_ns > latest[rank].start_ns:
            latest[rank] = trace
    most = max(Counter(ranks).values())
    text = f"Up to {most} captures of a rank were found; the last one of each is reported."
    if len(latest) == 1:
        text = f"{most} captures of rank {ranks[0]} were found; the last one is reported."
    return Numbered(
        traces=tuple(latest.values()), ranks=tuple(latest), named=len(latest) > 1, left_out=(text,)
    )


def _untold(read: Sequence[RankTrace]) -> Numbered:
    """Of traces that tell no rank those of the last one's time, numbered by their names."""
    kept, said = list(read), []
    if all(trace.start_ns >= _EPOCH_NS for trace in read):
        last = max(read, key=lambda trace: trace.start_ns)
        kept = _different([trace for trace in read if _at_one_time(trace, last)])
        if len(kept) < len(read):
            said.append(_left_out(read, kept))
    if len(kept) == 1:
        return Numbered(traces=tuple(kept), ranks=(kept[0].rank or 0,), left_out=tuple(said))
    counted = numbers_in_names([Path(trace.source).name for trace in kept])
    text = "Neither the traces nor their names tell the ranks apart: they are numbered by name."
    return Numbered(
        traces=tuple(kept),
        ranks=tuple(range(len(kept)) if counted is None else counted),
        uncertain=() if counted is not None else (text,),
        left_out=tuple(said),
    )


def _at_one_time(trace: RankTrace, last: RankTrace) -> bool:
    """Whether one was recorded as the other, which begins last, was; clocks may differ."""
    one_clock = trace.pid == last.pid or (trace.host is not None and trace.host == last.host)
    return trace.end_ns + (0 if one_clock else CLOCKS_APART_NS) >= last.start_ns


def _different(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Less copies of one capture: no two of a process begin in the same nanosecond."""
    found = {(t.host, t.pid, t.start_ns, t.end_ns): t for t in reversed(traces)}
    return list(reversed(found.values()))


def _left_out(read: Sequence[RankTrace], kept: Sequence[RankTrace]) -> str:
    if len({(trace.host, trace.pid) for trace in read}) == 1:
        return f"{len(read)} captures of one process were found; the last one is reported."
    n_others = len(read) - len(kept)
    return (
        f"Of {len(read)} traces {n_others} {'is' if n_others == 1 else 'are'} of another time than "
        "the last one, or a copy, so no rank beside it, and left out. Name one to have it reported."
    )
