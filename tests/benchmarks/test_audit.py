"""The audit's loops, truth and judgement (benchmarks/audit*.py)."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SEED = 15


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def module(name: str) -> Any:
    return importlib.import_module(name)


def calibration() -> Any:
    return module("audit_scripts").Calibration(cpu_ms=0.5, gpu_ms=0.01, cycles_per_ms=1e6)


def drawn(n: int = 40, device: str = "cuda") -> list[Any]:
    loops = module("audit_loops")
    return [loops.audited(SEED, i, device=device, cpus=3) for i in range(n)] + [
        loops.compute_bound(SEED, i, device=device, cpus=2) for i in range(n)
    ]


def loop_of(**given: Any) -> Any:
    of_loop = {"name": "one", "device": "cpu", "compute_ms": 10.0} | given
    return module("audit_loops").AuditLoop(**of_loop)


def test_a_seed_and_a_number_are_always_the_same_loop() -> None:
    assert drawn() == drawn()
    assert len({str(loop) for loop in drawn()}) == 80


def test_an_audit_has_every_ingredient() -> None:
    loops = drawn()[:40]
    assert {"fixed", "new", "plan"} == {loop.shapes for loop in loops}
    assert {"", "statistics", "resume"} == {loop.skips for loop in loops}
    places = {place for loop in loops for place in loop.host_ms}
    assert places == set(module("audit_loops").PLACES)
    assert any(loop.validates_every for loop in loops)
    assert any(loop.n_loaders > 1 for loop in loops)
    assert any(loop.busy for loop in loops)
    assert {"cpu", "cuda"} == {loop.device for loop in loops}
    assert all(loop.device == "cpu" for loop in drawn(device="cpu"))


def test_every_script_and_every_variant_compiles() -> None:
    scripts = module("audit_scripts")
    for loop in drawn():
        for variant in (None, *scripts.variants_of(loop)):
            text = scripts.script_of(loop, calibration(), variant=variant, lasts_s=9.0)
            compile(text, loop.name, "exec")
            assert ("clock.mark(step)" in text) == (variant is not None)


def test_what_a_variant_leaves_out_is_not_in_it() -> None:
    scripts = module("audit_scripts")
    host = {"to_forward": 7.25, "between_epochs": 9.5}
    loop = loop_of(
        host_ms=host, epoch_steps=10, validates_every=5, validation_batches=2, saving_ms=3.0
    )
    texts = {v: scripts.script_of(loop, calibration(), variant=v) for v in scripts.VARIANTS}
    assert "Ready(loader" not in texts["plain"]
    assert all("Ready(loader" in texts[v] for v in scripts.VARIANTS[1:])
    for left_out in ("burn(9.5)", "in held_out", "torch.save("):
        assert [v for v in texts if left_out in texts[v]] == ["plain", "ready", "resident"]
    assert [v for v in texts if "burn(7.25)" in texts[v]] == list(scripts.VARIANTS[:4])


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("batch_ms", [5.0, 19.0, 60.0, 200.0])
def test_a_steady_pipeline_takes_what_is_slower(workers: int, batch_ms: float) -> None:
    step_ms = module("audit_loops").pipeline_ms(batch_ms, workers, 20.0)
    assert step_ms == pytest.approx(max(batch_ms / workers, 20.0), rel=1e-3)


def test_workers_fill_their_queue_while_the_loop_validates() -> None:
    pipeline_ms = module("audit_loops").pipeline_ms
    # Five steps of 20 ms want 150 ms of one worker; of the 400 outside two batches are kept.
    kept = pipeline_ms(30.0, 1, 20.0, period=5, outside_ms=400.0)
    assert 5 * kept == pytest.approx(400.0 + 5 * 30.0 - 2 * 30.0 + 20.0, abs=20.0)
    # As long as what is missing fits the queue, nobody waits.
    free = pipeline_ms(22.0, 1, 20.0, period=5, outside_ms=400.0)
    assert free == pytest.approx((5 * 20.0 + 400.0) / 5)


def test_truth_is_what_each_variant_saves() -> None:
    loop = loop_of(
        batch_ms=30.0, burns=True, host_ms={"after_step": 5.0, "between_epochs": 20.0},
        epoch_steps=10, validates_every=10, validation_batches=1, validation_batch_ms=80.0,
    )  # fmt: skip
    runs = {"plain": [56.0, 54.0, 55.0]}
    runs |= {name: [ms] * 3 for name, ms in (("ready", 25.0), ("inside", 15.0), ("bare", 10.0))}
    truth = module("audit_truth").truth_of(loop, runs)
    assert truth.shares == pytest.approx(
        {"input": 30 / 55, "copy": 0.0, "host": 5 / 55, "outside": 8 / 55, "between": 2 / 55}
    )
    assert truth.computing == pytest.approx(10 / 55)
    assert truth.noise["input"] == pytest.approx(1 / 55)
    assert set(truth.either_copy.values()) == {0.0}
    assert truth.constructed_ms == pytest.approx(55.0)
    assert truth.either == 0.0
    known = module("audit_truth").truth_of(
        replace(loop, sleeping_kernel=True, compute_ms=6.0), runs
    )
    assert known.either == pytest.approx(4 / 55)


def truth_of(
    *,
    either: float = 0.0,
    noise: float = 0.0,
    either_copy: dict[str, float] | None = None,
    **shares: float,
) -> Any:
    causes = module("audit_truth").CAUSES
    return module("audit_truth").Truth(
        wall_ms=100.0,
        shares={cause: shares.get(cause, 0.0) for cause in causes},
        either=either,
        either_copy=dict.fromkeys(("host", "outside", "between"), 0.0) | (either_copy or {}),
        noise=dict.fromkeys((*causes, "wall"), noise),
    )


@pytest.mark.parametrize(
    ("truth", "right"),
    [
        ({"input": 0.5, "host": 0.3}, {"input"}),
        ({"input": 0.31, "host": 0.3}, {"input", "host"}),
        ({"input": 0.04}, {"input", "compute"}),
        ({"input": 0.01}, {"compute"}),
        ({"host": 0.1}, {"host", "compute"}),
        ({"host": 0.4, "outside": 0.1}, {"host"}),
        ({"between": 0.4}, {"host", "outside"}),
        ({"either": 0.6}, {"host", "compute"}),
        ({"input": 0.11, "noise": 0.08}, {"input", "compute"}),
        ({"copy": 0.2}, {"copy"}),
        ({"copy": 0.2, "either_copy": {"between": 0.18}}, {"copy", "host", "outside"}),
        ({"copy": 0.2, "either_copy": {"outside": 0.2}}, {"copy", "outside"}),
    ],
)
def test_a_bound_is_right_if_it_is_the_largest_within_the_noise(
    truth: dict[str, Any], right: set[str]
) -> None:
    assert set(module("audit_judge").right_bounds(truth_of(**truth))) == right


def report_of(bound: str, severity: str, input_share: float, **more: Any) -> dict[str, Any]:
    return {
        "verdict": {"bound": bound, "severity": severity, "summary": ""},
        "step": {"wall_ms": 100.0},
        "shares": {"input": input_share, "copy": None},
        "ablation": None,
        "findings": [],
    } | more


@pytest.mark.parametrize(
    ("truth", "report", "wrong"),
    [
        ({"input": 0.5}, report_of("input", "high", 0.52), []),
        ({"input": 0.5}, report_of("input", "high", 0.56), ["input +6 points"]),
        (
            {"input": 0.1}, report_of("input", "high", 0.3),
            ["false high", "input +20 points"],
        ),
        ({}, report_of("input", "uncertain", 0.02), ["bound: compute"]),
        (
            {"outside": 0.8}, report_of("outside", "high", 0.0, step={"wall_ms": 20.0}),
            ["wall 20.0 ms"],
        ),
        (
            {"outside": 0.8},
            report_of(
                "outside", "high", 0.1, step={"wall_ms": 20.0}, wall={"total_ms": 100.0}
            ),
            [],
        ),
        (
            {"host": 0.6},
            report_of(
                "host", "high", 0.0, findings=[{"kind": "too-few-workers", "severity": "high"}]
            ),
            ["false high too-few-workers"],
        ),
    ],
)  # fmt: skip
def test_a_report_is_judged(
    truth: dict[str, Any], report: dict[str, Any], wrong: list[str]
) -> None:
    judge = module("audit_judge")
    assert judge.why_wrong(loop_of(), truth_of(**truth), judge.said_by(report)) == wrong


def test_work_of_its_own_is_no_alarm_where_it_was_built_in() -> None:
    judge = module("audit_judge")
    said = judge.said_by(report_of("host", "high", 0.0))
    plans = loop_of(compute_ms=78.0, shapes="plan", plan_ms=22.0)
    assert judge.false_own_work(plans, said) == []
    little = loop_of(compute_ms=96.0, host_ms={"fetch_to": 4.0})
    assert judge.false_own_work(little, said) == ["false high host"]
    compute = judge.said_by(report_of("compute", "none", 0.0))
    assert judge.false_own_work(loop_of(), compute) == []


def test_own_work_of_a_crowded_cpu_is_a_part_of_what_was_built_in() -> None:
    # 001 of the false alarms, three busy processes beside it on two CPUs: 166 ms took 730.
    judge = module("audit_judge")
    said = replace(judge.said_by(report_of("host", "high", 0.0)), wall_ms=730.5)
    plans = loop_of(compute_ms=88.0, shapes="plan", plan_ms=78.0)
    assert judge.false_own_work(plans, said) == []
    few = loop_of(compute_ms=88.0, shapes="plan", plan_ms=12.0)
    assert judge.false_own_work(few, said) == ["false high host"]


def test_jobs_share_no_core_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = module("audit")

    def used(cpus: int, *, jobs: int, each: int, every: int = 1) -> list[int]:
        args = SimpleNamespace(jobs=jobs, cpus_each=each, apart=every)
        return audit.apart(list(range(cpus)), args)  # type: ignore[no-any-return]

    monkeypatch.setattr(audit, "siblings", lambda cpu: frozenset((cpu // 2 * 2, cpu // 2 * 2 + 1)))
    assert used(12, jobs=2, each=3) == [0, 2, 4, 6, 8, 10]
    assert used(12, jobs=3, each=3) == list(range(12))
    monkeypatch.setattr(audit, "siblings", lambda cpu: frozenset((cpu,)))
    assert used(12, jobs=2, each=3) == list(range(12))
    assert used(12, jobs=2, each=3, every=2) == [0, 2, 4, 6, 8, 10]
    assert used(12, jobs=3, each=3, every=2) == list(range(12))


def test_a_noisy_truth_decides_nothing() -> None:
    assert not module("audit_judge").too_noisy(truth_of(noise=0.05))
    assert module("audit_judge").too_noisy(truth_of(noise=0.2))


def test_an_alarm_is_confirmed_only_by_a_truth_that_is_surely_so_large() -> None:
    """Copies of 6.3 ± 8.2 % were said to confirm one."""
    judge = module("audit_judge")

    def said(severity: str, share: float = 0.1, noise: float = 0.05) -> Any:
        return judge.Said(
            bound="copy", severity=severity, wall_ms=100.0, shares={"input": 0.0, "copy": share},
            noise={"copy": noise}, high=(), kinds=(), summary="",
        )  # fmt: skip

    for share, noise, confirms in ((0.063, 0.082, False), (0.12, 0.05, True), (0.063, 0.02, True)):
        truth = truth_of(copy=share, noise=noise)
        assert (judge.does_not_confirm(truth, said("moderate")) == "") is confirms
        assert judge.does_not_confirm(truth, said("high"))
    small = truth_of(copy=0.028, noise=0.004)  # beside others it was told as 19 ± 8 %
    assert judge.does_not_confirm(small, said("moderate", 0.19, 0.08)).startswith("false alarm")


@pytest.mark.slow
def test_a_variant_ends_by_itself_with_the_time_of_a_step(tmp_path: Path) -> None:
    scripts = module("audit_scripts")
    loop = loop_of(host_ms={"fetch_to": 20.0}, host_burns=False, batch_ms=16.0)
    for name in ("plain", "bare"):
        text = scripts.script_of(loop, calibration(), variant=name, seconds=0.3)
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "audit_truth.py"), str(tmp_path), "--rounds", "1"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    runs = json.loads(done.stdout)
    assert set(runs) == {"plain", "bare"}
    assert runs["plain"][0] > 36.0


def test_one_stalled_run_of_five_is_no_noise() -> None:
    half_interval = module("audit_truth").half_interval
    assert half_interval([30.0]) == 0.0
    assert half_interval([30.0, 31.0, 80.0]) == 25.0
    assert half_interval([30.0, 31.0, 31.0, 80.0]) > 25.0
    assert half_interval([30.0, 31.0, 31.0, 32.0, 80.0]) == pytest.approx(1.3, abs=0.1)
    # More runs, a narrower interval.
    assert half_interval([30.0, 31.0, 32.0] * 4) < 0.7


def test_what_a_copy_makes_the_host_wait_for_may_be_called_what_it_hides() -> None:
    """Without copies the device computes beside the loop's own work, which then costs nothing."""
    loop = loop_of(
        host_ms={"fetch_to": 2.0, "between_epochs": 40.0}, epoch_steps=40,
        validates_every=4, validation_batches=2, validation_batch_ms=10.0,
        shapes="plan", plan_ms=3.0,
    )  # fmt: skip
    loop = replace(loop, device="cuda")
    ms = {"plain": 30.0, "ready": 30.0, "resident": 20.0, "inside": 18.0, "bare": 18.0}
    truth = module("audit_truth").truth_of(loop, {name: [one] * 3 for name, one in ms.items()})
    assert truth.shares["copy"] == pytest.approx(10 / 30)
    assert truth.shares["between"] == pytest.approx(1 / 30)
    assert truth.shares["outside"] == pytest.approx(1 / 30)
    assert truth.either_copy == pytest.approx({"host": 5 / 30, "outside": 4 / 30, "between": 0.0})
    judge = module("audit_judge")
    for bound in ("copy", "host", "outside"):
        assert bound in judge.right_bounds(truth)
    said = judge.said_by(
        report_of("outside", "moderate", 0.0, shares={"input": 0.0, "copy": 0.04})
        | {"step": {"wall_ms": 30.0}}
    )
    assert judge.why_wrong(loop, truth, said) == []
    on_cpu = replace(loop, device="cpu")
    other = module("audit_truth").truth_of(on_cpu, {name: [one] * 3 for name, one in ms.items()})
    assert set(other.either_copy.values()) == {0.0}


@pytest.mark.parametrize(
    ("shares", "either_copy", "largest"),
    [
        ({"copy": 0.3}, {}, 0.3),
        ({"copy": 0.3}, {"host": 0.3}, 0.15),
        ({"copy": 0.3}, {"host": 0.3, "outside": 0.3, "between": 0.3}, 0.075),
        ({"copy": 0.3}, {"host": 0.05}, 0.25),
        ({"copy": 0.3, "host": 0.1}, {"host": 0.3}, 0.2),
        ({"copy": 0.3, "input": 0.25}, {"host": 0.3, "outside": 0.3}, 0.25),
        ({"copy": -0.02, "input": 0.1}, {}, 0.1),
    ],
)
def test_a_copy_that_may_be_called_several_things_is_counted_once(
    shares: dict[str, float], either_copy: dict[str, float], largest: float
) -> None:
    judge, truth = module("audit_judge"), truth_of(either_copy=either_copy, **shares)
    assert judge.least_largest(truth) == pytest.approx(largest)
    assert truth.hidden <= max(0.0, truth.shares["copy"])
    most = judge.shares_by_bound(truth)
    built_in = shares.get("host", 0.0) + max(0.0, shares["copy"])
    assert most["host"] <= built_in + 1e-9


def test_rows_of_several_processes_are_judged_anew(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit, judge = module("audit"), module("audit_judge")
    loop = loop_of(batch_ms=30.0)
    said = judge.said_by(report_of("input", "high", 0.4, step={"wall_ms": 50.0}))
    times = {"before_ms": {"plain": [50.0, 50.0], "ready": [30.0, 30.0]}}
    times |= {"after_ms": {"plain": [50.0], "ready": [30.0]}}
    known = {"loop": "b", "told": "", "params": loop.as_dict()} | audit.row_of(said, 20.0) | times
    alarm = {"loop": "a", "told": "", "params": {}, "ok": False, "why": ["failed: no report"]}
    for name, row in (("one", known | {"ok": False, "why": ["an older rule"]}), ("two", alarm)):
        (tmp_path / name).write_text(json.dumps(row) + "\n")
    table = module("audit_table")
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "one"), str(tmp_path / "two")])
    assert table.main() == 1
    printed = capsys.readouterr().out
    assert "40.0 / 40.0" in printed
    assert "an older rule" not in printed
    assert "1 of 2 right" in printed
