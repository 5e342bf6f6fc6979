"""The disk and the memory behind the dataset: cold caches, many small files, RAM running out.

And requests that fail: the pause before each is sent again is no latency of the storage's. File
systems are known by name, with what each offers to one who waits for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LineHotspot, WorkerFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Finding, Kind
from loaderdoctor.findings.capacity import MAX_WAITING_CPU_SHARE, in_flight_bytes, rest_ms
from loaderdoctor.findings.exposure import copy_cost, exposed, input_cost, loader_id, severity
from loaderdoctor.findings.input_parts import making_cost
from loaderdoctor.findings.line_names import (
    at,
    least_share,
    line_evidence,
    seen,
    seen_enough,
    where,
)
from loaderdoctor.hazards import MIN_AVAILABLE_BYTES

# A disk and the page cache differ by several times. Half as much again is what imports, first
# allocations and clock ramps add to a first epoch without any disk.
MIN_FIRST_TOUCH_RATIO = 2.0
# A read that misses the page cache waits at least for a flash read, some 0.1 ms; what is smaller
# is a warm-up of interpreter and allocator.
MIN_EXTRA_MS = 0.05
# Lines are sampled: opening files is the cause where a good part of the samples lie there.
MIN_OPEN_LINE_SHARE = 0.33
# Swap in use is often a leftover; with little free memory it is not.
MIN_SWAP_BYTES = 256 * 1024**2
LOW_AVAILABLE_BYTES = 1024**3

_OPENS = re.compile(
    r"\bopen\(|imread\(|\.load\(|read_image\(|read_file\(|read_bytes\(|read_text\(|_loader\("
    r"|fromfile\(|decode_image\("
)
# Where clients pause before a request is sent again, "file:function" by their own sources; each
# with its name. Clients that retry on an event loop (aiobotocore, gcsfs) do it in another thread.
_CLIENTS = (
    (r"/urllib3/util/retry\.py:(.*\.)?(_?sleep\w*)$", "urllib3"),
    (r"/tenacity/nap\.py:", "tenacity"),
    (r"/backoff/_sync\.py:", "backoff"),
    (r"/botocore/endpoint\.py:(.*\.)?_needs_retry$", "botocore"),
    (r"/google/api_core/retry/\w+\.py:.*retry", "google.api_core"),
    (r"/azure/core/pipeline/policies/_retry\.py:(.*\.)?_?sleep\w*$", "azure.core"),
    (r"/huggingface_hub/utils/_http\.py:\w*backoff\w*", "huggingface_hub"),
    (r"/retrying\.py:", "retrying"),
)
# Of making a batch: what surely lies above this, by the lower end of its stack samples.
MIN_LOW_PART = 0.05


def _cold_batch_ms(workers: WorkerFacts, first_ms: float) -> float:
    """A batch of samples that are all touched for the first time.

    Batches of the windows are no base for it: they may be cold themselves, all or in part.
    """
    made_of = workers.n_samples / max(1, workers.n_batches)
    return first_ms * made_of + max(0.0, workers.batch_ms - workers.fetch_ms)


def cold_storage(facts: Facts) -> Finding | None:
    """The first pass over the data is slow, later ones find it in memory.

    Decides on: time of a sample at its first touch / later ones, where the cold pace is slower than
    the rest of the step; the difference is what it explains.
    Abstains: only one pass was seen, or sample times were not recorded.
    Fooled by: a dataset that caches samples itself, which looks the same (and is as real).
    """
    workers, rest = facts.workers, rest_ms(facts)
    if workers is None or rest is None:
        return None
    ratio, first_ms = workers.first_touch_ratio, workers.first_touch_ms
    if ratio is None or first_ms is None:
        return None
    if ratio < MIN_FIRST_TOUCH_RATIO or first_ms * (1.0 - 1.0 / ratio) < MIN_EXTRA_MS:
        return None
    cold_ms = _cold_batch_ms(workers, first_ms) / max(1, workers.n_workers)
    if cold_ms <= rest:
        return None
    whole = input_cost(facts)
    cost = whole.part(cold_ms - rest) if whole is not None else None
    return Finding(
        kind=Kind.COLD_STORAGE,
        severity=cost.severity if cost is not None else severity(0.0),
        share=cost.share if cost is not None else None,
        loader=loader_id(facts),
        summary=(
            f"A sample takes {ratio:.1f}x as long the first time as later, from the page cache: a "
            f"cold epoch hands out a batch every {fmt.ms(cold_ms)} while the rest of the step "
            f"takes {fmt.ms(rest)}. Judge settings on warm epochs, or copy the data to faster "
            "storage first."
        ),
        evidence={
            "first_touch_ratio": ratio,
            "cold_ms_per_batch": cold_ms,
            "rest_of_step_ms": rest,
            "input_ms_per_step": cost.ms if cost is not None else None,
            "step_ms": facts.step_ms,
        },
        advice="Copy the data to local storage or memory before the first epoch, or read it once "
        "in order.",
    )


def many_small_files(facts: Facts) -> Finding | None:
    """Each sample opens its own file, and the workers wait for that.

    Decides on: stack samples of lines that open or read files, CPU share of making a batch, and the
    exposed input time that making batches explains.
    Abstains: too few stack samples or no CPU times recorded, or the pool keeps up with the step.
    Fooled by: one large file opened again for each sample; keep it open then.
    """
    workers, cost = facts.workers, making_cost(facts)
    if workers is None or cost is None or workers.cpu_share is None:
        return None
    if workers.cpu_share >= MAX_WAITING_CPU_SHARE:
        return None
    hotspots = [x for x in workers.lines if x.code is not None and _OPENS.search(x.code)]
    share = min(1.0, sum(x.share for x in hotspots))
    if not seen_enough(hotspots) or share < MIN_OPEN_LINE_SHARE:
        return None
    part = cost.part(cost.ms * share)
    if part.share < MODERATE_SHARE:
        return None
    hottest = max(hotspots, key=lambda x: x.share)
    return Finding(
        kind=Kind.MANY_SMALL_FILES,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"{seen(*hotspots)} of making a batch is opening and reading a file per sample"
            f"{at(hottest)}, while the loop waits {cost.of_step}. Pack the samples into few "
            "large files (LMDB, webdataset, TFRecord)."
        ),
        evidence={
            "open_share_of_batch": share,
            "cpu_share": workers.cpu_share,
            **line_evidence(hottest),
            **cost.as_input,
        },
        advice="Pack the samples into a few large files that are read in order (LMDB, webdataset, "
        "TFRecord), or copy them to local storage." + helps(facts),
    )


def memory_short(facts: Facts) -> Finding | None:
    """Batches in flight (pinned ones can't be swapped) while host memory runs out.

    Decides on: memory available against the batches the loader keeps ready, and swap in use.
    Abstains: memory not recorded, or neither workers nor pinning hold batches.
    Fooled by: memory another program is about to give back.
    """
    machine, loader = facts.machine, facts.main_loader
    if machine is None or machine.memory_available_bytes is None or loader is None:
        return None
    settings = loader.settings
    if not settings.num_workers and not settings.pin_memory:
        return None
    n, available = settings.num_workers or 0, machine.memory_available_bytes
    held = (in_flight_bytes(facts, n, settings.prefetch_factor) or 0) * machine.ranks_here
    swapping = (machine.swap_used_bytes or 0) >= MIN_SWAP_BYTES and available < LOW_AVAILABLE_BYTES
    if available >= max(MIN_AVAILABLE_BYTES, held) and not swapping:
        return None
    cost = input_cost(facts) or copy_cost(facts)
    known = exposed(facts, "input")
    if cost is None and known is not None and not swapping:
        return None
    swap = (
        f" with {fmt.n_bytes(machine.swap_used_bytes)} in swap" if machine.swap_used_bytes else ""
    )
    pinned = "pinned " if settings.pin_memory else ""
    n_ranks = machine.ranks_here
    whose = f"the loaders of {n_ranks} ranks keep" if n_ranks > 1 else "the loader keeps"
    return Finding(
        kind=Kind.MEMORY_SHORT,
        severity=cost.severity if cost is not None else severity(0.0),
        share=cost.share if cost is not None else None,
        loader=loader.id,
        summary=(
            f"Only {fmt.n_bytes(available)} of host memory are available{swap}, and {whose} "
            f"up to {fmt.n_bytes(held)} of {pinned}batches ready. Use fewer workers or a "
            "smaller prefetch_factor, and keep data out of tmpfs."
        ),
        evidence={
            "memory_available_bytes": available,
            "swap_used_bytes": machine.swap_used_bytes,
            "in_flight_bytes": held,
            "num_workers": n,
            "pin_memory": settings.pin_memory,
            "step_ms": facts.step_ms,
        },
        advice="Lower num_workers or prefetch_factor; pinning and tmpfs take memory that can't be "
        "swapped or reclaimed.",
    )


def retried_requests(facts: Facts) -> Finding | None:
    """Requests fail and are sent again, and the pauses in between are a part of making a batch.

    Decides on: stack samples of making batches that fell within the pause of a client's retries,
    and the exposed input time that making batches explains.
    Abstains: too few stack samples, a client that retries on a thread of its own, or the pool keeps
    up with the step.
    Fooled by: such a library used to limit its own rate, or to poll.
    """
    workers, cost = facts.workers, making_cost(facts)
    if workers is None or cost is None:
        return None
    paused = [(line, client) for x in workers.lines for line, client in _paused(x)]
    lines = [line for line, _ in paused]
    if not lines or least_share(lines) < MIN_LOW_PART:
        return None
    share = min(1.0, sum(line.share for line in lines))
    part = cost.part(cost.ms * share)
    if part.share < MODERATE_SHARE:
        return None
    most, client = max(paused, key=lambda x: x[0].n_stack_samples)
    n, of = sum(line.n_stack_samples for line in lines), most.of_stack_samples
    return Finding(
        kind=Kind.RETRIED_REQUESTS,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"Requests fail and are sent again{kept_on(facts)}: {fmt.share(share)} of making a "
            f"batch ({n} of {of} stack samples) is the pause that {client} makes in "
            f"between{at(most)}, while the loop waits {cost.of_step}."
        ),
        evidence={
            "client": client,
            "line": where(most),
            "line_code": most.code,
            "paused_share_of_batch": share,
            "paused_looks": n,
            "looks": of,
            "batch_ms": workers.batch_ms,
            **cost.as_input,
        },
        advice="Find out what fails: log the status of each answer (logging.getLogger("
        '"urllib3").setLevel(logging.DEBUG), or the client\'s own). Answers 429 and 503 ask for '
        "fewer or larger requests, or another key prefix, and more workers make more of them; "
        "resets and time-outs are the connection's: keep it open in each worker.",
    )


def _paused(hotspot: LineHotspot) -> list[tuple[LineHotspot, str]]:
    """The stack samples of a line that fell within retries, by the client that pauses."""
    found = []
    for leaf in hotspot.leaves:
        place = f"{leaf.file}:{leaf.function}".replace("\\", "/")
        for pattern, client in _CLIENTS:
            if re.search(pattern, place):
                line = replace(hotspot, n_stack_samples=leaf.n_stack_samples, leaves=())
                found.append((line, client))
                break
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """What a kind is to a reader, and what helps there."""

    name: str
    helps: str


_OBJECTS = FileSystem(
    name="an object store mounted as files",
    helps="Each open and each jump is a request over the network: read large shards in order, let "
    "the mount keep a cache on a local disk, or read objects by the store's own client.",
)
_PARALLEL = FileSystem(
    name="a parallel file system",
    helps="Opening files asks its one metadata server: pack samples into large files, striped over "
    "several targets.",
)
_NETWORK = FileSystem(
    name="files of another machine",
    helps="Copy the data to a local disk before training, or pack it into large files: each open "
    "asks the server.",
)
# By the kind that the mount table tells, or its first word ("nfs4", "fuse.gcsfuse").
KINDS = {
    "nfs": FileSystem(
        name="NFS",
        helps="On NFS each open asks the server: pack samples into large files, copy them to a "
        "local disk, or mount with nconnect=8, a large rsize and noatime.",
    ),
    "cifs": _NETWORK,
    "smb3": _NETWORK,
    "9p": _NETWORK,
    "virtiofs": _NETWORK,
    "fuse.sshfs": _NETWORK,
    "fuse.gcsfuse": _OBJECTS,
    "fuse.s3fs": _OBJECTS,
    "fuse.goofys": _OBJECTS,
    "fuse.mountpoint-s3": _OBJECTS,
    "fuse.rclone": _OBJECTS,
    "fuse.blobfuse": _OBJECTS,
    "fuse.blobfuse2": _OBJECTS,
    "fuse.juicefs": _OBJECTS,
    "lustre": _PARALLEL,
    "gpfs": _PARALLEL,
    "beegfs": _PARALLEL,
    "ceph": _PARALLEL,
    "fuse.ceph-fuse": _PARALLEL,
    "overlay": FileSystem(
        name="a container's layers",
        helps="Data in a container's layers is read through all of them: mount it as a volume.",
    ),
    "fuse": FileSystem(
        name="a FUSE file system",
        helps="Each call goes through another process (FUSE): read more at once, or copy the "
        "data to a local disk.",
    ),
}
# Those whose reads the system counts when they come from a disk or a server, and not from memory.
_COUNTED = ("ext", "xfs", "btrfs", "nfs", "f2fs", "overlay")


def file_system_of(kind: str) -> FileSystem | None:
    """None of a local one, or one that is not known here."""
    if kind.startswith("nfs"):
        return KINDS["nfs"]
    return KINDS.get(kind) or (KINDS["fuse"] if kind.startswith("fuse") else None)


def kept_on(facts: Facts) -> str:
    """` (nfs4: NFS)`: on which file system, where only one is known; else a loaded client."""
    loader = facts.main_loader
    if loader is None or len(loader.file_systems) != 1:
        return f" ({loader.clients[0]})" if loader is not None and len(loader.clients) == 1 else ""
    kind = loader.file_systems[0]
    known = file_system_of(kind)
    return f" ({fmt.plain(kind)}{f': {known.name}' if known is not None else ''})"


def helps(facts: Facts) -> str:
    """A sentence of its own, with a blank before it; empty where nothing special is known."""
    loader = facts.main_loader
    if loader is None or len(loader.file_systems) != 1:
        return ""
    known = file_system_of(loader.file_systems[0])
    return f" {known.helps}" if known is not None else ""


def cached(facts: Facts) -> str:
    """`, 40 % of it from memory`: of what is read, where the system tells; else empty."""
    loader = facts.main_loader
    reads = facts.workers.reads if facts.workers is not None else None
    if loader is None or reads is None or len(loader.file_systems) != 1:
        return ""
    if not loader.file_systems[0].startswith(_COUNTED):
        return ""
    return f", {fmt.share(1.0 - reads.disk_share)} of it from the page cache"
