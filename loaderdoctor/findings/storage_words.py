"""File systems by name, and what each offers to one who waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor import format as fmt
from loaderdoctor.facts.whole import Facts


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


def where(facts: Facts) -> str:
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
