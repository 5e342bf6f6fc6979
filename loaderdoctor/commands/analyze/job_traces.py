"""The traces of a job: which files, which rank each one is, and reading them (`trace_readers`)."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loaderdoctor.attribution.ranks import RankTrace
from loaderdoctor.commands.analyze.trace_readers import LocalReader, TraceReader
from loaderdoctor.errors import TraceError, UsageError

SUFFIXES = (".json", ".json.gz")
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d+)", re.IGNORECASE)
_HERE = LocalReader()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Ranks read, in order of rank, and what the report must say about the rest."""

    traces: tuple[RankTrace, ...]
    ranks: tuple[int, ...]
    problems: tuple[str, ...]
    numbered: bool  # whether the traces or their names say that they are ranks


def traces_in(folder: Path) -> tuple[Path, ...]:
    """The trace files of a folder, by name; of a run folder of ours its full traces.

    Raises UsageError where there are none.
    """
    if (folder / "report.json").is_file() and (folder / "perfetto").is_dir():
        folder = folder / "perfetto"
    found = _files(folder.iterdir()) or _files(folder.rglob("*"))
    if not found:
        raise UsageError(f"{folder}: holds no trace ({' or '.join(SUFFIXES)}).")
    return found


def read_job(paths: Sequence[Path], reader: TraceReader = _HERE) -> Job:
    """Read every trace; one that can't be read is a problem told, not an end.

    Raises TraceError where none can be read.
    """
    found = dict(_summaries(paths, reader))
    traces = {path: found[path] for path in paths}
    problems = [one for one in traces.values() if isinstance(one, str)]
    read = [one for one in traces.values() if isinstance(one, RankTrace)]
    if not read:
        raise TraceError(problems[0])
    kept, ranks, numbered, more = _number(read)
    order = sorted(range(len(kept)), key=lambda i: ranks[i])
    return Job(
        traces=tuple(kept[i] for i in order),
        ranks=tuple(ranks[i] for i in order),
        problems=(*problems, *more),
        numbered=numbered,
    )


# ---------------------------------------------------------------- reading


def _summaries(
    paths: Sequence[Path], reader: TraceReader
) -> Iterator[tuple[Path, RankTrace | str]]:
    with _progress() as bar:
        task = bar.add_task("Reading traces", total=len(paths))
        for path, found in reader.read(paths):
            yield path, found
            bar.advance(task)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr, markup=False),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


# ---------------------------------------------------------------- numbering


def _number(read: list[RankTrace]) -> tuple[list[RankTrace], list[int], bool, list[str]]:
    """The traces kept, their ranks, whether anything but their order tells these, and problems."""
    stated = [trace.rank for trace in read]
    known = [rank for rank in stated if rank is not None]
    if len(known) == len(read) and len(set(known)) == len(read):
        return read, known, True, []
    names = [Path(trace.source).name for trace in read]
    if (named := ranks_in_names(names)) is not None:
        return read, named, True, []
    if len(known) == len(read) and len(set(known)) > 1:
        return _latest_of_each(read, known)
    said = []
    if (counted := numbers_in_names(names)) is not None:
        return read, counted, False, []
    if len(read) > 1:
        said = [
            "Neither the traces nor their names tell the ranks apart: they are numbered by name."
        ]
    return read, list(range(len(read))), False, said


def ranks_in_names(names: Sequence[str]) -> list[int] | None:
    """Ranks from file names like `trace_rank3.json.gz`; None where not each has its own."""
    marked = [_RANK_IN_NAME.search(name) for name in names]
    ranks = [int(match[1]) for match in marked if match is not None]
    return ranks if len(set(ranks)) == len(names) else None


def numbers_in_names(names: Sequence[str]) -> list[int] | None:
    """Numbers in the names that count the files, as in `worker3.pt.trace.json`; None without."""
    numbers = [[int(n) for n in re.findall(r"\d{1,9}", name)] for name in names]
    for place in range(min(map(len, numbers), default=0)):
        ranks = [found[place] for found in numbers]
        # Process ids and times differ too; ranks are small.
        if len(ranks) > 1 and len(set(ranks)) == len(ranks) and max(ranks) <= 2 * len(ranks):
            return ranks
    return None


def _latest_of_each(
    read: list[RankTrace], ranks: list[int]
) -> tuple[list[RankTrace], list[int], bool, list[str]]:
    """Of several captures of a rank the last: they are of different times."""
    latest: dict[int, RankTrace] = {}
    for trace, rank in zip(read, ranks, strict=True):
        if rank not in latest or trace.start_ns > latest[rank].start_ns:
            latest[rank] = trace
    most = max(Counter(ranks).values())
    text = f"Up to {most} captures of a rank were found; the last one of each is reported."
    return list(latest.values()), list(latest), True, [text]


def _files(entries: Iterator[Path]) -> tuple[Path, ...]:
    return tuple(
        sorted(p for p in entries if p.name.endswith(SUFFIXES) and p.is_file() and p.name[0] != ".")
    )
