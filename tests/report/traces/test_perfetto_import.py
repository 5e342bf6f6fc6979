"""Our full traces in Perfetto's own trace processor: every event arrives, none crosses."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.event_parser import ProfileRole
from torch_tb_profiler.profiler.run_generator import RunGenerator

from loaderdoctor.attribution import attribute
from loaderdoctor.attribution.pictures import tracks
from loaderdoctor.report import decode_report
from loaderdoctor.report.traces import Overlay, write_perfetto_trace
from loaderdoctor.report.traces.worker_tracks import CATEGORY
from loaderdoctor.trace import read_trace
from tests.report.conftest import CASES, load, trace_path
from tests.report.perfetto_ui import Perfetto, perfetto, why_not
from tests.report.traces.test_worker_tracks import N_STEPS, Recorded, record

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
# It has overlapping kernels; the others take the same way.
QUICK = ("pinned_same_stream",)


@pytest.fixture(scope="module")
def ui() -> Iterator[Perfetto]:
    with perfetto() as opened:
        yield opened


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("workers"), 2)


def full_trace(source: Path, target: Path, of_workers: list[dict[str, Any]]) -> Path:
    """As `analyze` and `diagnose` write it."""
    added = Overlay.of(tracks(attribute(read_trace(source))), of_workers)
    write_perfetto_trace(source, target, added)
    return target


def check_import(ui: Perfetto, trace: Path) -> None:
    """Nothing dropped, and what the file holds is what the processor counts."""
    ui.open(trace)
    assert ui.problems() == {}
    events = load(trace)["traceEvents"]
    spans = Counter(event["name"] for event in events if event["ph"] in "Xi")
    sql = "select name, count(*) as n from slice group by name"
    assert dict(ui.rows(sql, name="text", n="number")) == spans
    counters = sum(len(event["args"]) for event in events if event["ph"] == "C")
    assert ui.number("select count(*) as n from counter") == counters
    begun = {(e["cat"], e["id"]) for e in events if e["ph"] == "s"}
    arrows = [e for e in events if e["ph"] == "f" and (e["cat"], e["id"]) in begun]
    assert ui.number("select count(*) as n from flow") == len(arrows)
    to_copies = sum(event["name"] == "copy of the batch" for event in arrows)
    sql = (
        "select count(*) as n from flow join slice a on a.id = slice_out join slice b on b.id = "
        "slice_in where a.name like '%.__next__' and b.name like 'Memcpy HtoD%'"
    )
    assert ui.number(sql) == to_copies


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_every_event_of_a_recorded_trace_arrives(case: str, ui: Perfetto, tmp_path: Path) -> None:
    check_import(ui, full_trace(trace_path(case), tmp_path / "t.json.gz", []))


@pytest.mark.slow
def test_overlapping_kernels_were_dropped_before(ui: Perfetto) -> None:
    """The trace as torch wrote it: why they have rows of their own."""
    ui.open(trace_path("pinned_same_stream"))
    assert ui.problems() == {"slice_drop_overlapping_complete_event": 84}


def test_tracks_arrows_and_shares_of_a_fresh_trace_arrive(
    ui: Perfetto, workers: Recorded, tmp_path: Path
) -> None:
    check_import(ui, full_trace(workers.path, tmp_path / "t.json.gz", workers.tracks))
    tracks = ui.rows(
        "select distinct p.name as process, t.name as track from slice s "
        "join thread_track k on s.track_id = k.id join thread t using (utid) "
        f"join process p using (upid) where s.category = '{CATEGORY}' order by 1, 2",
        process="text",
        track="text",
    )
    assert tracks == [
        [f"DataLoader worker {worker}", track]
        for worker in (0, 1)
        for track in ("batches", "queue feeder")
    ]
    # An arrow joins a batch and the `__next__` that returned it, whichever began first.
    joined = ui.rows(
        "select a.name as one, b.name as two from flow join slice a on a.id = slice_out join slice "
        f"b on b.id = slice_in where '{CATEGORY}' in (a.category, b.category)",
        one="text",
        two="text",
    )
    assert len(joined) == sum(event["ph"] == "s" for event in workers.tracks) >= N_STEPS / 2
    others = [one if two == "collate" else two for one, two in joined if "collate" in (one, two)]
    assert len(others) == len(joined)
    into_next = [name for name in others if name.endswith(".__next__")]
    # Where another worker's batch came first, only the op that unpacks the awaited one is left.
    assert set(others) - set(into_next) <= {"aten::empty", "aten::set_"}
    assert into_next


SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(64), i % 10

model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    for x, y in DataLoader(Slow(), batch_size=16, num_workers=2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_fresh_diagnosis_arrives_whole_and_the_plugin_agrees_with_it(
    ui: Perfetto, tmp_path: Path
) -> None:
    """The real command, workers started anew each epoch; both files of its profiled window."""
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "run"
    command = [sys.executable, "-m", "loaderdoctor", "diagnose", "--budget", "20", "--no-verify"]
    done = subprocess.run(
        [*command, "--output", str(run), "train.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    check_import(ui, run / "perfetto" / "baseline.json.gz")
    sql = f"select count(*) as n from slice where category = '{CATEGORY}'"
    assert ui.number(sql) > 0

    report = decode_report((run / "report.json").read_bytes(), source=run)
    ours = report.trace_shares or report.shares
    assert ours is not None
    assert ours.input is not None
    (dialect,) = (run / "tensorboard" / "baseline").glob("*.pt.trace.json.gz")
    data = RunProfileData.parse("worker", "1", str(dialect), str(dialect.parent))
    RunGenerator("worker", "1", data).generate_run_profile()
    costs = data.avg_costs.costs
    assert costs[ProfileRole.DataLoader] / costs[ProfileRole.Total] == pytest.approx(
        ours.input, abs=0.05
    )
    steps = {e["name"] for e in load(dialect)["traceEvents"] if e["name"].startswith("ProfilerSt")}
    assert {f"ProfilerStep#{name}" for name in data.steps_names} == steps
