"""File systems are named, and what helps there is said, only where they are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import ReadFacts
from loaderdoctor.findings.rules.storage import cached, helps, kept_on
from tests.findings.builders import healthy, loader, workers

READS = ReadFacts(bytes_per_batch=1e6, calls_per_batch=10.0, disk_share=0.6)


def on(*kinds: str, clients: tuple[str, ...] = ()) -> Facts:
    record = loader(file_systems=kinds, clients=clients)
    return replace(healthy(), loaders=(record,), workers=workers(reads=READS))


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("nfs", "NFS", "nconnect=8"),
        ("nfs4", "NFS", "nconnect=8"),
        ("cifs", "files of another machine", "local disk"),
        ("fuse.gcsfuse", "an object store", "cache on a local disk"),
        ("fuse.mountpoint-s3", "an object store", "large shards in order"),
        ("fuse.something", "a FUSE file system", "FUSE"),
        ("overlay", "a container's layers", "volume"),
        ("lustre", "a parallel file system", "striped"),
    ],
)
def test_a_known_file_system_has_its_name_and_its_remedy(kind: str, name: str, words: str) -> None:
    assert kept_on(on(kind)).startswith(f" ({kind}: {name}")
    assert words in helps(on(kind))


def test_a_local_one_is_only_named_and_of_several_none_is() -> None:
    assert kept_on(on("ext4")) == " (ext4)"
    assert helps(on("ext4")) == ""
    assert kept_on(on("ext4", "nfs4")) == kept_on(on()) == ""
    assert helps(on("ext4", "nfs4")) == ""
    assert kept_on(on(clients=("S3 (boto3)",))) == " (S3 (boto3))"


def test_what_came_from_memory_is_told_only_where_the_system_counts_it() -> None:
    assert cached(on("ext4")) == cached(on("nfs4")) == ", 40 % of it from the page cache"
    assert cached(on("fuse.gcsfuse")) == cached(on("tmpfs")) == cached(on()) == ""
    assert cached(replace(on("ext4"), workers=workers(reads=None))) == ""
