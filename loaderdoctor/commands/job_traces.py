"""The traces of a job: which files, which rank each one is, and reading them on all cores.

Each trace is reduced to what the comparison of ranks needs where it is read, so memory does not
grow with the number of ranks, and never holds more traces than there are processes.
"""

from __future__ import annotations

import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loaderdoctor.attribution.rank_trace import RankTrace, rank_trace
from loaderdoctor.attribution.trace_facts import attribute
from loaderdoctor.errors import LoaderdoctorError, RunError, TraceError, UsageError
from loaderdoctor.instrument.machine import memory_available_bytes, usable_cpus
from loaderdoctor.trace.read import read_trace

SUFFIXES = (".json", ".json.gz")
# Below this a process of its own takes longer to start (0.4 s) than the traces take to read.
MIN_POOL_BYTES = 4 << 20
# Memory while one trace is read, over its file's size: 2.8 for the text of a 465 MB trace
# (benchmarks/analyze.py); gzip shrinks such text 12 to 18 times.
MEMORY_PER_BYTE = 3.0
MEMORY_PER_GZIP_BYTE = 50.0
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d+)", re.IGNORECASE)


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


def read_job(paths: Sequence[Path]) -> Job:
    """Read every trace; one that can't be read is a problem told, not an end.

    Raises TraceError where none can be read.
    """
    found = dict(_summaries(paths))
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


def summary_of(path: Path) -> RankTrace | str:
    """What one trace brings, or why it can't be read. Runs in a process of the pool."""
    try:
        return rank_trace(attribute(read_trace(path, in_parts=False)))
    except LoaderdoctorError as error:
        return str(error)


# ---------------------------------------------------------------- reading


def _summaries(paths: Sequence[Path]) -> Iterator[tuple[Path, RankTrace | str]]:
    n_processes = _n_processes(paths)
    with _progress() as bar:
        task = bar.add_task("Reading traces", total=len(paths))
        if n_processes == 1:
            for path in paths:
                yield path, summary_of(path)
                bar.advance(task)
            return
        context = multiprocessing.get_context("spawn")  # the progress bar runs in a thread
        with ProcessPoolExecutor(n_processes, mp_context=context) as pool:
            try:
                waiting: dict[Future[RankTrace | str], Path] = {
                    pool.submit(summary_of, path): path for path in paths
                }
                for done in as_completed(waiting):
                    yield waiting[done], done.result()
                    bar.advance(task)
            except BrokenProcessPool:
                raise RunError(
                    "A process that read a trace was killed, most likely for want of memory. "
                    "Name fewer or smaller traces."
                ) from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _n_processes(paths: Sequence[Path]) -> int:
    """As many as there are CPUs, as memory holds the largest traces at once."""
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    if sum(sizes) < MIN_POOL_BYTES:
        return 1
    needed = max(
        n * (MEMORY_PER_GZIP_BYTE if path.name.endswith(".gz") else MEMORY_PER_BYTE)
        for path, n in zip(paths, sizes, strict=True)
    )
    available = memory_available_bytes()
    room = int(available / needed) if available is not None and needed > 0 else len(paths)
    return max(1, min(len(paths), int(usable_cpus()), room))


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
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
