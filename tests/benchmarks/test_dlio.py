"""DLIO's utilisation as benchmarks/dlio.py reads it, and what it asks DLIO for."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
dlio = importlib.import_module("dlio")
sys.path.remove(str(BENCHMARKS))


def epoch(first_s: float) -> dict[str, object]:
    """Eleven steps of 100 ms, 40 of which compute and 60 wait; the first one takes longer."""
    steps = {
        "compute": {"block1": [0.04] * 11},
        "load": {"block1": [first_s - 0.04] + [0.06] * 10},
        "proc": {"block1": [first_s] + [0.1] * 10},
    }
    return {"au": {"block1": 40.0}, **steps}


def test_the_first_epoch_is_left_out_and_first_steps_are_counted(tmp_path: Path) -> None:
    found = {"1": epoch(9.0), "2": epoch(0.1), "3": epoch(1.2), "hostname": "x"}
    (tmp_path / "0_output.json").write_text(json.dumps(found))
    own, whole, waiting = dlio.utilisations(tmp_path)
    assert own == [0.4, 0.4]
    assert whole == [pytest.approx(0.4), pytest.approx(0.44 / 2.2)]
    assert waiting == [pytest.approx(0.6), pytest.approx(1.76 / 2.2)]


def test_every_workload_has_steps_and_asks_for_the_pytorch_loader() -> None:
    for workload in dlio.WORKLOADS:
        asked = workload.overrides(Path("x"))
        assert workload.n_steps >= 20
        assert asked["reader.data_loader"] == asked["framework"] == "pytorch"
        assert asked["workflow.checkpoint"] is False


def test_what_one_process_does_not_need_is_stood_in_for_where_it_does_not_import(
    tmp_path: Path,
) -> None:
    found = dlio.Dlio(None, tmp_path, tmp_path).env
    for name, statement in dlio.NEEDED.items():
        assert (str(dlio.STANDINS / name) in found["PYTHONPATH"]) != dlio.imports(statement)
    stood_in = found | {"PYTHONPATH": os.pathsep.join(str(dlio.STANDINS / n) for n in dlio.NEEDED)}
    done = subprocess.run(
        [sys.executable, "-c", USED], cwd=tmp_path, env=stood_in, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "written").read_bytes() == bytes([0, 0, 0, 1, 2])


# As DLIO uses its tracer and MPI: see config.py, torch_data_loader.py, indexed_binary_generator.py.
USED = """
import numpy, tensorflow, mpi4py
from mpi4py import MPI
from dftracer.logger import dftracer, dft_fn, DFTRACER_ENABLE
dlp = dft_fn("reader")
@dlp.log_init
def made(x): return x
@dlp.log
def read(x): return x
with dft_fn("loader", step=1):
    dlp.update(step=1)
assert [made(read(i)) for i in dlp.iter(range(3))] == [0, 1, 2] and not DFTRACER_ENABLE
world = MPI.COMM_WORLD
world.barrier()
assert (world.rank, world.size, world.Split_type(MPI.COMM_TYPE_SHARED).size) == (0, 1, 1)
total = numpy.zeros(2)
world.Reduce(numpy.array([3, 4]), total, op=MPI.SUM, root=0)
assert total.tolist() == [3, 4] and world.allreduce(5) == 5
file = MPI.File.Open(world, "written", MPI.MODE_WRONLY | MPI.MODE_CREATE)
file.Write_at_all(3, numpy.array([1, 2], numpy.uint8))
file.Close()
"""


def test_a_row_tells_what_failed() -> None:
    line = dlio.line({"name": "x", "error": "x: DLIO fails\nValueError: no", "agrees": False})
    assert "ValueError: no" in line
    assert "**no**" in line


def test_the_second_run_is_as_long_as_epochs_of_the_first_let_it_be(tmp_path: Path) -> None:
    found = {"1": epoch(9.0), "2": epoch(0.1), "3": epoch(1.1), "hostname": "x"}
    (tmp_path / "0_output.json").write_text(json.dumps(found))
    assert dlio.seconds_of(tmp_path) == pytest.approx((1.1 + 2.1) / 2)


def test_the_noise_of_epochs_is_that_of_runs_where_these_differ_by_more() -> None:
    mean, within = dlio.mean_and_noise([[0.4, 0.42], [0.41, 0.41]])
    assert mean == pytest.approx(0.41)
    # Half of 0.01 (the first run's standard error), as the second adds none; twice that.
    assert within == pytest.approx(0.01)
    mean, between = dlio.mean_and_noise([[0.4], [0.5] * 11])
    assert mean == pytest.approx(0.45)  # a run with more epochs is one run
    assert between == pytest.approx(0.05)  # of the two, neither is further off


class Recorded:
    """Stands for DLIO: epochs of a hundred steps that wait for a tenth, and a report of them."""

    def __init__(self, work: Path, share: float, claim: tuple[float, float]) -> None:
        self.work, self.share, self.claim = work, share, claim
        self.asked: list[int] = []
        self.wait_s = 0.01
        self.verdict = {"bound": "input", "severity": "uncertain", "summary": ""}

    def generate(self, workload: object) -> None:
        pass

    def run(self, workload: object, what: str, more: dict[str, int]) -> Path:
        self.asked.append(more["train.epochs"])
        load = [self.wait_s] * 100
        steps = {"compute": [0.1 - self.wait_s] * 100, "load": load, "proc": [0.1] * 100}
        one = {"au": {"block1": 90.0}, **{k: {"block1": v} for k, v in steps.items()}}
        output = self.work / what
        output.mkdir()
        found = {str(i + 1): one for i in range(more["train.epochs"])}
        (output / "0_output.json").write_text(json.dumps(found))
        return output

    def diagnose(self, workload: object, budget_s: float) -> tuple[dict[str, object], str]:
        claims = {"input_ms": [100 * self.share, [100 * x for x in self.claim]]}
        report = {
            "shares": {"input": self.share},
            "step": {"wall_ms": 100.0},
            "ablation": {"ci_ms": {"input_ms": [-30.0, 50.0]}, "claims": claims},
            "verdict": self.verdict,
            "findings": [{"kind": "too-few-workers"}],
        }
        return report, "No training seen"


def test_a_row_that_decides_nothing_is_no_yes() -> None:
    row = {"agrees": True, "decides": False, "agrees_with_waiting": True}
    assert dlio.within(row) == "decides nothing"
    assert dlio.within(row | {"decides_of_waiting": True}, dlio.WAITING) == "yes"
    assert dlio.within(row | {"agrees": False}) == dlio.within({"agrees": False}) == "**no**"


@pytest.mark.parametrize(
    ("share", "claim", "agrees", "decides"),
    [
        (0.12, (0.09, 0.14), True, True),
        (0.30, (0.25, 0.35), False, True),
        (0.30, (0.0, 0.35), True, False),
    ],
)
def test_a_row_stands_beside_dlio_by_what_is_claimed(
    tmp_path: Path, share: float, claim: tuple[float, float], agrees: bool, decides: bool
) -> None:
    recorded = Recorded(tmp_path, share, claim)
    row = dlio.row_of(recorded, dlio.WORKLOADS[0], budget_s=30.0, seconds=20.0, n_epochs=None)
    assert recorded.asked == [4, 4]  # 10 s an epoch: two of them, and never fewer than at first
    assert (row["au"], row["waited"]) == (pytest.approx(0.9), pytest.approx(0.1))
    assert (row["agrees"], row["agrees_with_waiting"], row["decides"]) == (agrees, agrees, decides)
    said = dlio.line(row)
    assert f"| {100 * (1 - share):.1f} |" in said and ("**no**" in said) is not agrees
    assert ("decides nothing" in said) is not decides
    assert json.loads(json.dumps(row))["input"]["share"] == share


def test_a_verdict_that_the_utilisation_denies_is_no_yes_by_a_share_that_may_be_anything(
    tmp_path: Path,
) -> None:
    recorded = Recorded(tmp_path, 0.0, (0.0, 1.0))
    recorded.verdict = {"bound": "compute", "severity": "none", "summary": ""}
    recorded.wait_s = 0.04
    row = dlio.row_of(recorded, dlio.WORKLOADS[0], budget_s=30.0, seconds=20.0, n_epochs=None)
    assert (row["agrees"], row["agrees_with_waiting"], row["decides"]) == (False, False, False)
    assert dlio.within(row) == "**no**"


def test_that_no_training_was_seen_is_no_verdict_on_its_waiting(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, 0.41, (0.38, 0.45))
    recorded.verdict = {"bound": "unknown", "severity": "none", "summary": "only read"}
    recorded.wait_s = 0.04
    row = dlio.row_of(recorded, dlio.WORKLOADS[0], budget_s=30.0, seconds=20.0, n_epochs=None)
    assert (row["agrees"], row["agrees_with_waiting"], row["decides"]) == (True, True, True)


def test_workloads_take_cpus_of_their_own_and_small_ones_fill_what_is_left() -> None:
    wanted = {w.name: dlio.n_cpus_of(w, 4) for w in dlio.WORKLOADS}
    assert (wanted["unet3d-h100"], wanted["csv"], wanted["default"]) == (4, 3, 2)
    assert max(wanted.values()) == 4
    assert max(dlio.n_cpus_of(w, 1) for w in dlio.WORKLOADS) == 1
    cpus = dlio.Cpus(range(6))
    first, late = cpus.take(4), []
    waits = threading.Thread(target=lambda: late.append(cpus.take(4)))
    waits.start()
    assert cpus.take(2) == [4, 5]  # though four were asked for before
    assert not late
    cpus.give_back(first)
    waits.join(10)
    assert late == [first]


def test_rows_are_shown_in_the_order_of_the_workloads() -> None:
    rows = [{"name": name} for name in ("csv", "unet3d-h100", "default")]
    shown = [row["name"] for row in dlio.in_order(rows)]
    assert shown == ["unet3d-h100", "default", "csv"]
