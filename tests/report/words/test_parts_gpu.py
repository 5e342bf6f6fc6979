"""What the report says of the GPU, of the user's ranges, and of the memory history."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from loaderdoctor.commands.analyze import AnalyzeOptions, analyze
from loaderdoctor.facts.trace import BusyFacts
from loaderdoctor.report import decode_report, encode_report
from loaderdoctor.report.build import gpu_of
from loaderdoctor.report.console import console_text
from loaderdoctor.report.html import html
from loaderdoctor.report.model import MemoryHistory, Report
from loaderdoctor.report.words import (
    device_figures,
    device_heading,
    idle_gaps_sentence,
    memory_history_sentence,
)
from tests.report import sample_facts, samples
from tests.report.conftest import trace_path


def busy(**changes: Any) -> BusyFacts:
    assert sample_facts.BUSY.idle_gaps is not None
    return replace(sample_facts.BUSY, idle_gaps=replace(sample_facts.BUSY.idle_gaps, **changes))


def test_the_sentence_gives_depth_period_length_and_cause() -> None:
    assert idle_gaps_sentence(busy(usual_share=0.86, low_share=0.04)) == (
        "GPU-busy falls from 86 % to 4 % about every 85.0 ms (5 steps), for 38.0 ms each. "
        "97 % of that time the loop waits for a batch."
    )


@pytest.mark.parametrize(
    ("matches", "steps", "said"),
    [
        ("epoch", 40, "about every 5.00 s (where an epoch of 40 steps begins), for"),
        ("epoch", None, "about every 5.00 s (where an epoch begins), for"),
        ("worker-cycle", 8, "(in each cycle of 8 steps, one batch from every worker), for"),
    ],
)
def test_what_the_dips_go_with_is_said(
    matches: Literal["worker-cycle", "epoch"], steps: int | None, said: str
) -> None:
    text = idle_gaps_sentence(busy(matches=matches, match_steps=steps, period_ms=5000.0))
    assert said in text


def test_irregular_single_and_absent_dips_promise_no_period() -> None:
    assert "4 times in the 340 ms profiled, for" in idle_gaps_sentence(busy(regular=False))
    alone = idle_gaps_sentence(busy(n=1, period_ms=None, period_steps=None, regular=False))
    assert "once in the 340 ms profiled, for 38.0 ms." in alone
    even = idle_gaps_sentence(replace(sample_facts.BUSY, idle_gaps=None))
    assert "every" not in even.replace("every step", "")
    assert "evenly at 2 %" in even
    assert "waits" not in idle_gaps_sentence(busy(waiting_share=None))


def test_epochs_too_long_for_the_window_are_told_from_the_plain_windows() -> None:
    facts = sample_facts.with_gpu()
    assert facts.step is not None
    gpu = gpu_of(facts)
    assert gpu is not None
    assert gpu.busy is not None
    assert gpu.busy.summary.endswith(
        "An epoch is longer than the window: one begins about every 12.3 s, and its first step "
        "takes 94.0 ms longer."
    )
    for changes in (
        {"boundary_ms": 5.0},  # less than a step
        {"boundary_ms": None},
        {"steps_per_epoch": None},
        {"steps_per_epoch": 20},  # the window has seen it
    ):
        other = gpu_of(replace(facts, step=replace(facts.step, **changes)))
        assert other is not None
        assert other.busy is not None
        assert "epoch" not in other.busy.summary


def test_tensorboards_list_is_named_only_where_it_tells_another_share() -> None:
    report = samples.input_bound()
    assert report.gpu is not None
    (device,) = report.gpu.devices
    assert ("by TensorBoard's list", "11 %") in device_figures(device)
    same = replace(
        sample_facts.DEVICE, plugin_tensor_core_share=sample_facts.DEVICE.tensor_core_share
    )
    facts = sample_facts.with_gpu()
    assert facts.trace is not None
    gpu = gpu_of(replace(facts, trace=replace(facts.trace, gpu_devices=(same,))))
    assert gpu is not None
    assert [name for name, _ in device_figures(gpu.devices[0])][-1] == "tensor cores"


def test_figures_that_were_not_recorded_are_left_out_on_screen_and_null_in_json() -> None:
    bare = replace(sample_facts.DEVICE, sm_efficiency_share=None, occupancy_share=None)
    facts = sample_facts.with_gpu()
    assert facts.trace is not None
    report = samples.built(
        facts=replace(facts, trace=replace(facts.trace, gpu_devices=(bare,))),
        target="train.py",
        bound="input",
        severity="high",
    )
    assert "est. achieved occupancy" not in console_text(report)
    written = json.loads(encode_report(report))
    assert written["gpu"]["devices"][0]["occupancy_share"] is None
    assert written["gpu"]["peak_allocated_bytes"] == 1_310_000_000


def test_peaks_of_a_trace_stand_in_where_no_plain_window_has_them() -> None:
    facts = sample_facts.with_gpu()
    assert facts.trace is not None
    peaked = replace(sample_facts.DEVICE, peak_allocated_bytes=100, peak_reserved_bytes=2048)
    trace = replace(facts.trace, gpu_devices=(peaked, replace(sample_facts.DEVICE, index=1)))
    gpu = gpu_of(replace(facts, trace=trace, step=None))
    assert gpu is not None
    assert (gpu.peak_allocated_bytes, gpu.peak_reserved_bytes) == (100, 2048)
    measured = gpu_of(replace(facts, trace=trace))
    assert measured is not None
    assert measured.peak_allocated_bytes == 1_310_000_000


def test_several_devices_are_told_apart() -> None:
    report = samples.input_bound()
    assert report.gpu is not None
    (device,) = report.gpu.devices
    assert device_heading(device, 1) == ""
    assert device_heading(device, 2) == "GPU 0 (NVIDIA H100 80GB HBM3)"


def test_without_a_gpu_there_is_no_section() -> None:
    report = samples.cpu_only()
    assert report.gpu is None
    assert "The GPU" not in console_text(report)
    assert 'id="gpu"' not in html(report)


def test_names_of_ranges_are_shown_as_they_are_and_escaped() -> None:
    report = samples.input_bound()
    assert "log [red]metrics[/red]" in console_text(report)
    page = html(report)
    assert "log [red]metrics[/red]" in page
    assert "An outer range holds what its inner ones took." in page


def test_the_page_marks_each_dip_in_the_chart() -> None:
    pytest.importorskip("matplotlib")
    report = samples.input_bound()
    page = html(report)
    chart = page[page.index('id="gpu-busy"') :].split("</figure>")[0]
    bands = [part for part in chart.split("<path")[1:] if "var(--input)" in part.split(">")[0]]
    assert len(bands) >= 2  # the bands and their upper edges, for each width
    assert report.gpu is not None
    assert report.gpu.busy is not None
    assert report.gpu.busy.summary in chart


def test_a_report_survives_being_written_and_read() -> None:
    report = replace_history(samples.input_bound())
    assert decode_report(encode_report(report), source=Path("r.json")) == report


def test_reports_of_earlier_versions_are_still_read() -> None:
    old = json.loads(encode_report(samples.input_bound()))
    for name in ("gpu", "ranges", "memory_history"):
        del old[name]
    read = decode_report(json.dumps(old).encode(), source=Path("r.json"))
    assert (read.gpu, read.ranges, read.memory_history) == (None, (), None)


HISTORY = MemoryHistory(
    path="memory_snapshot.pickle",
    n_bytes=3 << 20,
    n_entries=4210,
    max_entries=100_000,
    overhead=1.13,
    overhead_ci=(1.1, 1.16),
)


def replace_history(report: Report, **changes: Any) -> Report:
    given = {name: getattr(HISTORY, name) for name in HISTORY.__struct_fields__}
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    return Report(**(fields | {"memory_history": MemoryHistory(**(given | changes))}))


def test_the_memory_history_says_where_it_is_and_what_it_cost() -> None:
    assert memory_history_sentence(HISTORY) == (
        "memory_snapshot.pickle (3.00 MiB, 4,210 entries). While it was recorded, steps took 1.13× "
        "(95 %: 1.10× to 1.16×) as long."
    )
    report = replace_history(samples.input_bound())
    assert "1.13×" in console_text(report)
    assert "memory_snapshot.pickle" in html(report)


def test_a_full_history_says_that_it_is_not_all() -> None:
    report = replace_history(samples.cpu_only(), n_entries=100_000, overhead=None)
    assert report.memory_history is not None
    text = memory_history_sentence(report.memory_history)
    assert "older ones were dropped" in text
    assert "not measured" in text


def test_analyze_says_all_of_it_of_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.json"
    options = AnalyzeOptions(
        traces=(trace_path("one_slow_sample"),), json_target=str(target), verbose=True
    )
    assert analyze(options) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "GPU-busy falls from 10 % to 0.1 % about every 124 ms (8 steps)" in said
    gpu = json.loads(target.read_text())["gpu"]
    assert gpu["devices"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert gpu["busy"]["dips"]["n"] == len(gpu["busy"]["dips"]["spans_ms"]) == 3
    assert gpu["busy"]["summary"] in said
    assert gpu["peak_allocated_bytes"] is None
