"""The traces of a job: which files, which rank each one is, and who reads them within what memory.

Readers are the cores of this machine, or a Ray cluster. Both give each trace's summary as it comes.
A trace is reduced where it is read, so a reader's memory does not grow with their number, and the
command never holds one.
"""

from __future__ import annotations

import multiprocessing
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.ranks import RankTrace, rank_trace
from loaderdoctor.cluster import RefusedError
from loaderdoctor.cluster.ray_cluster import RayCluster
from loaderdoctor.commands.trace_ranks import numbered
from loaderdoctor.errors import LoaderdoctorError, RunError, TraceError, UsageError
from loaderdoctor.instrument.system.machine import memory_available_bytes, usable_cpus
from loaderdoctor.trace import read_trace, with_events

SUFFIXES = (".json", ".json.gz")
EngineName = Literal["local", "ray"]

# Below this another process takes longer to start (0.4 s) than the traces take to read.
MIN_POOL_BYTES = 4 << 20
# Memory while one trace is read, over its file's size: 2.8 for the text of a 465 MB trace
# (benchmarks/analyze.py); gzip shrinks such text 12 to 18 times.
MEMORY_PER_BYTE = 3.0
MEMORY_PER_GZIP_BYTE = 50.0
# A process that reads traces, before the first: Python, numpy, ourselves.
MEMORY_AT_LEAST = 200 << 20


# Of a trace that takes more only the first part is kept: 3.7 million spans, of 1.3 GB of text.
KEPT_BYTES = 2_000_000_000
# By default half of what is available now, so that whoever works on the machine goes on.
DEFAULT_SHARE = 0.5
LEAST_BYTES = 1 << 30
# What counting does not see: threads' stacks, the allocator's slack, libraries loaded on the way.
SLACK_BYTES = 512 << 20
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?\s*$", re.IGNORECASE)


class TraceReader(Protocol):
    """Reads many traces."""

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, RankTrace | str]]:
        """Each path with what its trace brings, or why it can't be read; in any order."""


def trace_reader(
    engine: EngineName, ray_address: str | None, max_memory_bytes: int | None = None
) -> TraceReader:
    """The reader that `--engine` names; of a cluster the memory limit is each node's own."""
    if engine == "ray":
        return RayReader(address=ray_address, max_memory_bytes=max_memory_bytes)
    return LocalReader(max_memory_bytes)


def summary_of(path: Path, max_memory_bytes: int | None = None) -> RankTrace | str:
    """What one trace brings, or why it can't be read. Runs in a process that reads traces."""
    try:
        trace = read_trace(
            path, in_parts=False, max_memory_bytes=max_memory_bytes, kept_bytes=KEPT_BYTES
        )
        return rank_trace(attribute(with_events(trace)), recorded_here=False)
    except LoaderdoctorError as error:
        return str(error)
    except MemoryError:
        return f"{path}: needs more memory than there is. Profile fewer steps."


def bytes_to_read(path: Path) -> float:
    """Memory that reading this trace may take; 0 where the file can't be seen."""
    size = path.stat().st_size if path.is_file() else 0
    return size * (MEMORY_PER_GZIP_BYTE if path.name.endswith(".gz") else MEMORY_PER_BYTE)


@dataclass(frozen=True, slots=True)
class LocalReader:
    """Reads on this machine: as many processes as there are CPUs, and memory for.

    `max_memory_bytes` is for all of them together; None: as much as is available.
    """

    max_memory_bytes: int | None = None

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, RankTrace | str]]:
        n_processes = _n_processes(paths, self.max_memory_bytes)
        limit = self.max_memory_bytes
        if n_processes == 1:
            for path in paths:
                yield path, summary_of(path, limit)
            return
        limit = None if limit is None else limit // n_processes
        context = multiprocessing.get_context("spawn")  # the progress bar runs in a thread
        with ProcessPoolExecutor(n_processes, mp_context=context) as pool:
            try:
                waiting: dict[Future[RankTrace | str], Path] = {
                    pool.submit(summary_of, path, limit): path for path in paths
                }
                for done in as_completed(waiting):
                    yield waiting[done], done.result()
            except BrokenProcessPool:
                raise RunError(
                    "A process that read a trace was killed, most likely for want of memory. "
                    "Name fewer or smaller traces."
                ) from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _n_processes(paths: Sequence[Path], max_memory_bytes: int | None = None) -> int:
    """As many as there are CPUs, as memory holds the largest traces at once."""
    if sum(path.stat().st_size for path in paths if path.is_file()) < MIN_POOL_BYTES:
        return 1
    needed = max(map(bytes_to_read, paths)) + MEMORY_AT_LEAST
    available = memory_available_bytes()
    if max_memory_bytes is not None:
        available = min(available, max_memory_bytes)
    return max(1, min(len(paths), int(usable_cpus()), int(available / needed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RayReader:
    """Reads on a Ray cluster: a CPU for each trace, memory permitting.

    `max_memory_bytes` is for each trace; None: as much as its node has.
    """

    address: str | None = None
    max_memory_bytes: int | None = None
    connect: Callable[[str | None], RayCluster] = RayCluster

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, RankTrace | str]]:
        items = [(str(path), str(path.absolute()), self.max_memory_bytes) for path in paths]
        needed = max(map(bytes_to_read, paths), default=0.0) + MEMORY_AT_LEAST
        if self.max_memory_bytes is not None:
            needed = min(needed, self.max_memory_bytes + MEMORY_AT_LEAST)
        with self.connect(self.address) as cluster:
            cluster.wait_places()
            for why in cluster.unusable:
                sys.stderr.write(f"loaderdoctor: not used: {why}\n")
            for came in cluster.run(summary_on_node, items, bytes_each=needed):
                path = paths[came.index]
                if came.given_up is not None:
                    yield path, f"{path}: not read: {came.given_up}"
                elif came.result is not None:
                    yield path, came.result


def summary_on_node(
    named: tuple[str, str, int | None], tell: Callable[[Any], None]
) -> RankTrace | str:
    """`summary_of` on a node: (path as the user wrote it, the same from anywhere, memory)."""
    written, absolute, max_memory_bytes = named
    if not Path(absolute).is_file():
        raise RefusedError(
            f"{socket.gethostname()} sees no such file. Traces must lie in a folder that every "
            "node of the cluster has under the same path."
        )
    found = summary_of(Path(absolute), max_memory_bytes)
    if isinstance(found, str):
        return found.replace(absolute, written)
    return replace(found, source=written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Ranks read, in order of rank, and what the report must say about the rest."""

    traces: tuple[RankTrace, ...]
    ranks: tuple[int, ...]
    problems: tuple[str, ...]
    left_out: tuple[str, ...]  # captures that are no rank of this job at this time
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


def read_job(paths: Sequence[Path], reader: TraceReader = LocalReader()) -> Job:
    """Read every trace; one that can't be read is a problem told, not an end.

    Raises TraceError where none can be read.
    """
    found = dict(_summaries(paths, reader))
    traces = {path: found[path] for path in paths}
    problems = [one for one in traces.values() if isinstance(one, str)]
    read = [one for one in traces.values() if isinstance(one, RankTrace)]
    if not read:
        raise TraceError(problems[0])
    found_ranks = numbered(read)
    ranks = found_ranks.ranks
    order = sorted(range(len(ranks)), key=lambda i: ranks[i])
    return Job(
        traces=tuple(found_ranks.traces[i] for i in order),
        ranks=tuple(ranks[i] for i in order),
        problems=(*problems, *found_ranks.uncertain),
        left_out=found_ranks.left_out,
        numbered=found_ranks.named,
    )


def _summaries(
    paths: Sequence[Path], reader: TraceReader
) -> Iterator[tuple[Path, RankTrace | str]]:
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr, markup=False),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with shown as bar:
        task = bar.add_task("Reading traces", total=len(paths))
        for path, found in reader.read(paths):
            yield path, found
            bar.advance(task)


def _files(entries: Iterator[Path]) -> tuple[Path, ...]:
    return tuple(
        sorted(p for p in entries if p.name.endswith(SUFFIXES) and p.is_file() and p.name[0] != ".")
    )


def memory_limit(text: str | None) -> int:
    """The bytes that `--max-memory` allows; the default without it. Raises UsageError."""
    if text is None:
        return max(LEAST_BYTES, int(memory_available_bytes() * DEFAULT_SHARE))
    match = _SIZE.match(text)
    if match is None or not 0 < float(match[1]) < 1e9:
        raise UsageError(f"--max-memory {text!r}: write a size, for example 4GB or 512MiB.")
    unit = 1024 if match[3] else 1000
    return int(float(match[1]) * unit ** " KMGT".index(match[2].upper() or " "))


@contextmanager
def enforced(n_bytes: int, paths: tuple[Path, ...]) -> Iterator[None]:
    """Within the block this process, and each it starts, can't take more than `n_bytes` and slack.

    The second line of defence, where counting was wrong: the kernel then refuses memory (Linux),
    and that is told like any trace that is too large. Raises UsageError.
    """
    named = str(paths[0]) if len(paths) == 1 else f"{len(paths)} traces"
    try:
        with _limited(n_bytes + SLACK_BYTES):
            yield
    except MemoryError:
        raise UsageError(
            f"{named}: needs more than {n_bytes / 1e9:.1f} GB of memory, the limit. Profile fewer "
            "steps, or allow more with --max-memory."
        ) from None


@contextmanager
def _limited(n_more_bytes: int) -> Iterator[None]:
    """Private memory of this process is bounded to what it has now and `n_more_bytes`."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # a lower limit is set already, or none may be
        limit = _data_bytes() + n_more_bytes
        if before[1] != resource.RLIM_INFINITY:
            limit = min(limit, before[1])
        resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int:
    """Private memory that this process has mapped, as RLIMIT_DATA counts it."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmData:\s*([0-9]+) kB", status, re.MULTILINE)
    if found is None:
        raise OSError("VmData is not told")
    return int(found[1]) * 1024
