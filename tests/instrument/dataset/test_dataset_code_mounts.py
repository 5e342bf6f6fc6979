"""The file system of a path is that of the deepest mount above it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loaderdoctor.instrument.dataset.dataset_code import file_system

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/data /data nfs4 ro 0 0
tmpfs /data/scratch tmpfs rw 0 0
sshfs#host: /my\\040disk fuse.sshfs rw 0 0
overlay /twice overlay rw 0 0
s3 /twice fuse.s3fs rw 0 0
mountpoint-s3 /objects fuse ro 0 0
/dev/fuse /odd fuse ro 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/data", "nfs4"),
        ("/data/train/0.jpg", "nfs4"),
        ("/database", "ext4"),
        ("/data/scratch/x", "tmpfs"),
        ("/my disk/x", "fuse.sshfs"),
        ("/twice/x", "fuse.s3fs"),
        ("/objects/x", "fuse.mountpoint-s3"),
        ("/odd/x", "fuse"),
    ],
)
def test_the_deepest_mount_tells_and_of_two_on_one_place_the_later(path: str, kind: str) -> None:
    assert file_system(path, MOUNTS) == kind


def test_without_mounts_nothing_is_known() -> None:
    assert file_system("/data", "") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/mounts")
def test_this_machine_tells_of_a_folder(tmp_path: Path) -> None:
    assert file_system(str(tmp_path)) is not None
