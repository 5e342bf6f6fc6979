"""The container's limits, from faked cgroup trees; the rest from the machine the tests run on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loaderdoctor.instrument.system import machine
from loaderdoctor.instrument.system.machine import (
    UNLIMITED_BYTES,
    cpu_quota,
    cpu_use_of_quota,
    memory_limit,
)

MB = 2**20


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def v2(root: Path, *, own: str, shown: str = "/") -> Path:
    """A machine with cgroup v2 alone; returns the mount point."""
    write(root / "proc/self/cgroup", f"0::{own}\n")
    write(
        root / "proc/self/mountinfo",
        "24 1 0:22 / /proc rw shared:1 - proc proc rw\n"
        f"30 24 0:26 {shown} /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    )
    return root / "sys/fs/cgroup"


def v1(root: Path, *, own: str, shown: str) -> Path:
    """A machine with the cpu and memory controllers of cgroup v1; returns their parent."""
    write(root / "proc/self/cgroup", f"4:cpu,cpuacct:{own}\n3:memory:{own}\n1:name=systemd:/\n")
    write(
        root / "proc/self/mountinfo",
        f"31 25 0:27 {shown} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        f"32 25 0:28 {shown} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
    )
    return root / "sys/fs/cgroup"


def test_v2_quota_of_a_container_is_read_at_its_own_root(tmp_path: Path) -> None:
    write(v2(tmp_path, own="/") / "cpu.max", "200000 100000\n")
    assert cpu_quota(tmp_path) == 2.0


def test_v2_takes_the_tightest_quota_of_all_parents(tmp_path: Path) -> None:
    mount = v2(tmp_path, own="/slice/job")
    write(mount / "slice/cpu.max", "150000 100000\n")
    write(mount / "slice/job/cpu.max", "800000 100000\n")
    assert cpu_quota(tmp_path) == 1.5


def test_v2_max_is_no_quota(tmp_path: Path) -> None:
    write(v2(tmp_path, own="/") / "cpu.max", "max 100000\n")
    assert cpu_quota(tmp_path) is None


def test_v2_group_outside_the_visible_subtree_falls_back_to_the_mount(tmp_path: Path) -> None:
    write(v2(tmp_path, own="/../other") / "cpu.max", "50000 100000\n")
    assert cpu_quota(tmp_path) == 0.5


def test_v1_quota_where_the_mount_shows_only_the_container(tmp_path: Path) -> None:
    mount = v1(tmp_path, own="/docker/abc", shown="/docker/abc")
    write(mount / "cpu,cpuacct/cpu.cfs_quota_us", "300000\n")
    write(mount / "cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path) == 3.0


def test_v1_minus_one_is_no_quota(tmp_path: Path) -> None:
    mount = v1(tmp_path, own="/", shown="/")
    write(mount / "cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    write(mount / "cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path) is None


def test_use_is_that_of_the_group_with_the_tightest_quota(tmp_path: Path) -> None:
    mount = v2(tmp_path, own="/slice/job")
    write(mount / "slice/cpu.max", "150000 100000\n")
    write(mount / "slice/cpu.stat", "usage_usec 7000\nnr_periods 40\nnr_throttled 30\n")
    write(mount / "slice/job/cpu.max", "800000 100000\n")
    write(mount / "slice/job/cpu.stat", "usage_usec 5000\nnr_periods 9\nnr_throttled 0\n")
    use = cpu_use_of_quota(tmp_path)
    assert use is not None
    assert (use.used_ns, use.n_periods, use.n_throttled) == (7_000_000, 40, 30)


def test_v1_use_of_a_quota(tmp_path: Path) -> None:
    cpu = v1(tmp_path, own="/docker/abc", shown="/docker/abc") / "cpu,cpuacct"
    assert cpu_use_of_quota(tmp_path) is None
    write(cpu / "cpu.cfs_quota_us", "300000\n")
    write(cpu / "cpu.cfs_period_us", "100000\n")
    write(cpu / "cpu.stat", "nr_periods 8\nnr_throttled 2\nthrottled_time 5\n")
    write(cpu / "cpuacct.usage", "123456789\n")
    use = cpu_use_of_quota(tmp_path)
    assert use is not None
    assert (use.used_ns, use.n_periods, use.n_throttled) == (123_456_789, 8, 2)


def test_usable_cpus_never_exceed_the_quota_nor_the_affinity(tmp_path: Path) -> None:
    mount = v2(tmp_path, own="/")
    write(mount / "cpu.max", "50000 100000\n")
    assert machine.usable_cpus(tmp_path) == 0.5
    write(mount / "cpu.max", "100000000 100000\n")
    allowed = machine.affinity_cpus()
    if sys.platform == "linux":
        assert allowed is not None
        assert machine.usable_cpus(tmp_path) == float(allowed)


def test_v2_memory_leaves_out_the_reclaimable_page_cache(tmp_path: Path) -> None:
    mount = v2(tmp_path, own="/")
    write(mount / "memory.max", f"{100 * MB}\n")
    write(mount / "memory.current", f"{90 * MB}\n")
    write(mount / "memory.stat", f"anon {50 * MB}\ninactive_file {30 * MB}\n")
    found = memory_limit(tmp_path)
    assert found is not None
    assert (found.limit_bytes, found.available_bytes) == (100 * MB, 40 * MB)
    assert machine.memory_available_bytes(tmp_path) == 40 * MB


def test_memory_limit_is_that_of_the_group_with_least_left(tmp_path: Path) -> None:
    mount = v2(tmp_path, own="/slice/job")
    for folder, limit, used in (("slice", 500, 490), ("slice/job", 200, 100)):
        write(mount / folder / "memory.max", f"{limit * MB}\n")
        write(mount / folder / "memory.current", f"{used * MB}\n")
    found = memory_limit(tmp_path)
    assert found is not None
    assert found.available_bytes == 10 * MB


@pytest.mark.parametrize(
    ("limit", "expected"), [(64 * MB, 24 * MB), (2**63 - 4096, None), (UNLIMITED_BYTES, None)]
)
def test_v1_memory_limit(tmp_path: Path, limit: int, expected: int | None) -> None:
    mount = v1(tmp_path, own="/", shown="/")
    write(mount / "memory/memory.limit_in_bytes", f"{limit}\n")
    write(mount / "memory/memory.usage_in_bytes", f"{40 * MB}\n")
    found = memory_limit(tmp_path)
    assert (found.available_bytes if found else None) == expected


def test_no_cgroups_at_all_means_no_limits(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None
    assert machine.shm_bytes(tmp_path) == (None, None)


def test_shm_is_measured_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    total, free = machine.shm_bytes(tmp_path)
    assert total is not None
    assert free is not None
    assert 0 <= free <= total


def test_gpu_listing_survives_names_and_memory_it_does_not_know() -> None:
    found = machine.parse_gpus("0, NVIDIA H100 80GB HBM3, 81559\n1, NVIDIA GB10, [N/A]\nNo devices")
    assert [(gpu.index, gpu.name) for gpu in found] == [
        (0, "NVIDIA H100 80GB HBM3"),
        (1, "NVIDIA GB10"),
    ]
    assert found[0].memory_bytes == 81559 * MB
    assert found[1].memory_bytes is None


def test_a_missing_or_failing_driver_tool_means_no_gpus() -> None:
    assert machine.gpus(("no-such-program-here",)) == ()
    assert machine.gpus((sys.executable, "-c", "raise SystemExit(9)")) == ()


def test_this_machine_can_be_described() -> None:
    here = machine.look()
    assert 0 < here.usable_cpus <= (here.logical_cpus or 1)
    assert 0 <= here.memory_available_bytes <= here.memory_total_bytes


def test_ranks_of_this_machine_are_those_of_the_launcher_else_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(machine, "_started", [])
    assert machine.local_ranks() is None
    machine.note_started_ranks(2)
    assert machine.local_ranks() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert machine.local_ranks() == 4


def test_free_memory_is_what_the_container_leaves(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(str(100 * 2**20))
    (group / "memory.current").write_text(str(70 * 2**20))
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {20 * 2**20}\n")
    assert machine.available_bytes(tmp_path) == 50 * 2**20
    assert machine.shm_free_bytes(tmp_path) is None
    assert machine.available_bytes(Path("/")) is not None
