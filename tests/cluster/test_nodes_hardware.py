"""Which machines are alike: the sample files of real machines, and this one."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.cluster import Hardware, Kinds, cpu_model, kind_name, look_here

ONE = Hardware(
    host="a",
    machine="1",
    cpu="AMD EPYC 7763",
    usable_cpus=16.0,
    memory_bytes=64 << 30,
    gpus=("NVIDIA H100",),
    torch="2.14.1",
    version="0",
)


def test_machines_of_one_type_are_alike_though_their_memory_is_not_to_the_byte() -> None:
    other = replace(ONE, host="b", machine="2", memory_bytes=ONE.memory_bytes - (1 << 30))
    assert ONE.differences(other) == []
    kinds = Kinds()
    assert kinds.of(ONE) == kinds.of(other)


def test_each_thing_that_changes_times_makes_machines_unlike() -> None:
    for other, word in (
        (replace(ONE, cpu="Intel Xeon"), "CPU AMD EPYC 7763 against Intel Xeon"),
        (replace(ONE, usable_cpus=8.0), "usable CPUs 16 against 8"),
        (replace(ONE, gpus=()), "GPUs NVIDIA H100 against none"),
        (replace(ONE, gpus=("NVIDIA H100",) * 2), "NVIDIA H100, NVIDIA H100"),
        (replace(ONE, torch="2.9.0"), "torch 2.14.1 against 2.9.0"),
        (replace(ONE, torch=None), "against not known"),
        (replace(ONE, memory_bytes=32 << 30), "memory 64 GiB against 32 GiB"),
    ):
        (told,) = ONE.differences(other)
        assert word in told
        kinds = Kinds()
        assert kinds.of(ONE) != kinds.of(other)


def test_kinds_are_named_in_order_of_appearance() -> None:
    kinds = Kinds()
    small = replace(ONE, usable_cpus=8.0)
    assert [kinds.of(one) for one in (ONE, small, ONE, small)] == ["A", "B", "A", "B"]
    assert [kind_name(n) for n in (0, 25, 26, 27)] == ["A", "Z", "A1", "B1"]


def test_the_cpu_is_read_from_what_x86_and_arm_machines_write() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: AMD EPYC 7763\n") == "AMD EPYC 7763"
    assert (
        cpu_model("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
        == "ARM 0x41/0xd40"
    )
    assert cpu_model("") is None


def test_this_machine_is_like_itself_and_known() -> None:
    here = look_here()
    assert here.differences(look_here()) == []
    assert here.machine
    assert here.torch is not None
    assert here.memory_bytes > 0
    assert here.usable_cpus > 0
