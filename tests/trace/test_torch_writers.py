"""Traces by each of torch's writers read alike, and all that we write passes torch's validator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.pictures import tracks
from loaderdoctor.report.traces import Overlay, write_perfetto_trace
from loaderdoctor.report.traces.tensorboard import write_plugin_trace
from loaderdoctor.trace import read_trace
from tests.trace_facts import trace_facts

validator = pytest.importorskip("torch.profiler._trace_validator", reason="torch 2.12 and later")

TRACES = Path(__file__).parents[2] / "traces"
SUFFIX = ".pt.trace.json.gz"
QUICK = frozenset(
    {
        "side_stream_overlap",
        "recreated_iterator",
        "pageable_big_copy",
        "item_every_step",
        "cpu/cpu_short_epochs",
        "simulated/stacks_input",
    }
)
LOOP = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.rand(96, 8)), batch_size=8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def written(p):
    p.export_chrome_trace(sys.argv[1])
    p.export_chrome_trace(sys.argv[2], use_python_export=True)
with profile(activities=[ProfilerActivity.CPU], with_stack=True, profile_memory=True,
             schedule=schedule(wait=1, warmup=1, active=6), on_trace_ready=written) as p:
    for x, in loader:
        model(x).sum().backward(); optimizer.step(); optimizer.zero_grad(); p.step()
"""


def test_what_the_python_writer_writes_reads_as_what_kineto_writes(tmp_path: Path) -> None:
    first, second = tmp_path / "kineto.json", tmp_path / "python.json.gz"
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(first), str(second)], capture_output=True, text=True
    )
    if "use_python_export" in done.stderr:
        pytest.skip("this torch has one writer")
    assert done.returncode == 0, done.stderr
    kineto, python = read_trace(first), read_trace(second)
    assert kineto.n_memory_events == python.n_memory_events > 0
    one, other = trace_facts(kineto), trace_facts(python)
    assert (one.n_steps, one.wall_ms) == (other.n_steps, other.wall_ms)
    assert one.shares == other.shares
    assert one.host.profiler is not None and other.host.profiler is not None
    assert one.host.profiler.n_ops == other.host.profiler.n_ops
    assert one.host.profiler.n_frames == other.host.profiler.n_frames
    assert [x.name for x in one.host.hotspots] == [x.name for x in other.host.hotspots]


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(
            str(path.relative_to(TRACES)).removesuffix(SUFFIX)
            for path in TRACES.rglob(f"*{SUFFIX}")
        )
    ],
)
def test_no_trace_of_ours_breaks_a_rule_of_torchs_validator(name: str, tmp_path: Path) -> None:
    source = TRACES / f"{name}{SUFFIX}"
    added = Overlay.of(tracks(attribute(read_trace(source))))
    perfetto, plugin = tmp_path / "a.json.gz", tmp_path / "w.1.pt.trace.json.gz"
    write_perfetto_trace(source, perfetto, added)
    write_plugin_trace(source, plugin, extra_waits=added.waits_outside_next)
    for path in (perfetto, plugin):
        passed, violations = validator.validate_trace(str(path))
        assert passed, [str(v) for v in violations]
