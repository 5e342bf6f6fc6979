"""Small reports with fixed figures, as the report tests and golden files show them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from loaderdoctor.facts.host import LineHotspot, WorkerFacts
from loaderdoctor.facts.loop import AblationFacts, OutsideFacts, WallFacts
from loaderdoctor.facts.step import Bound, Hidden, VerdictSeverity
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.report import model
from loaderdoctor.report.build import Judged, RunNotes, Tried, build_report
from loaderdoctor.settings import Settings
from tests.report.sample_facts import ENVIRONMENT, estimate, facts, shares, step_facts, with_gpu

IN_MAIN = Finding(
    kind=Kind.LOADER_IN_MAIN_PROCESS,
    severity=Severity.HIGH,
    share=0.865,
    loader="train.py:41",
    summary="The training process makes every batch itself (num_workers=0), and the accelerator "
    "waits for it.",
    evidence={"batch_ms": 10.551, "rest_of_step_ms": 1.729, "usable_cpus": 16},
)
CODE = """train.py:41
- loader = DataLoader(train_set, batch_size=64, shuffle=True)
+ loader = DataLoader(train_set, batch_size=64, shuffle=True,
+                     num_workers=7, persistent_workers=True)"""


def recommendation(setting: str, from_: Any, to: Any, **changes: Any) -> model.Recommendation:
    given: dict[str, Any] = {
        "setting": setting,
        "from_": from_,
        "to": to,
        "code": CODE,
        "predicted_step_ms": 1.8,
        "predicted_from": "ablation",
        "measured_step_ms": 2.31,
        "measured_ci_ms": (2.22, 2.40),
        "caution": None,
    }
    return model.Recommendation(**(given | changes))


CHANGES = (
    recommendation(
        "num_workers",
        0,
        7,
        caution="each worker holds a copy of what the dataset keeps in memory (120 MiB).",
    ),
    recommendation("persistent_workers", None, True),
)


def built(**given: Any) -> model.Report:
    """A report of all that is given, whichever value of `build_report` it belongs to."""

    def of(kind: type) -> dict[str, Any]:
        names = [field.name for field in fields(kind) if field.name in given]
        return {name: given.pop(name) for name in names}

    judged, tried, notes = Judged(**of(Judged)), Tried(**of(Tried)), RunNotes(**of(RunNotes))
    return build_report(**given, judged=judged, tried=tried, notes=notes)


def input_bound(**changes: Any) -> model.Report:
    """A loader in the training process on an H100: found, proven, tried."""
    given: dict[str, Any] = {
        "facts": with_gpu(),
        "target": "train.py",
        "bound": "input",
        "severity": "high",
        "findings": (IN_MAIN,),
        "recommendations": CHANGES,
        "not_advised": (
            model.NotAdvised(
                setting="resident",
                reason="the dataset augments at random, and its copy on the device would not.",
            ),
        ),
        "environment": ENVIRONMENT,
    }
    return built(**(given | changes))


def verdict(bound: Bound, severity: VerdictSeverity, **changes: Any) -> model.Report:
    """A diagnosis without findings or changes."""
    given: dict[str, Any] = {"facts": facts(), "target": "train.py", "environment": ENVIRONMENT}
    return built(bound=bound, severity=severity, **(given | changes))


def uncertain(
    *, input_share: float = 0.17, margin: float = 0.20, unsettled: str | None = None
) -> model.Report:
    """A step of 100 ms, whose loader may cost nothing."""
    parts = shares(input=input_share, compute=0.98 - input_share, host=0.02, copy=None)
    cost = estimate(100 * input_share, 100 * margin)
    ablation = AblationFacts(
        plain_ms=estimate(100.0, 5.0),
        no_input_ms=estimate(100 - cost.value, max(5.0, 100 * margin)),
        no_copy_ms=None,
        input_ms=cost,
        copy_ms=None,
        n_rounds=4,
    )
    given = facts(shares=parts, step=step_facts(estimate(100.0, 4.0)), ablation=ablation)
    return verdict("input", "uncertain", facts=given, unsettled=unsettled)


def validation_bound() -> model.Report:
    """Two thirds of all the time go into validation."""
    validation = OutsideFacts(
        what="validation", site="train.py:57", seconds=0.182, n=12, every_steps=5, wait_share=0.89
    )
    wall = WallFacts(step_ms=13.1, outside=(validation,), n_steps=300)
    found = Finding(
        kind=Kind.TIME_OUTSIDE_STEPS,
        severity=Severity.HIGH,
        share=wall.outside_share,
        loader="train.py:57",
        summary="36.4 of 49.5 ms a training step lie outside the steps. Validation (train.py:57), "
        "36.4 ms: 182 ms every 5 steps, seen 12 times.",
        evidence={"what": "validation", "seconds_each": 0.182, "every_n_steps": 5},
        advice="Give the loader of train.py:57 workers (num_workers): a pass waits 89 % of its "
        "time for batches. Validate less often, or on part of the data.",
    )
    return verdict("outside", "high", facts=facts(wall=wall, ablation=None), findings=(found,))


def ladder() -> model.Report:
    """A published table whose rows keep what those before them set; one was not reached."""
    rungs = (
        ("baseline, batch 32", {"batch_size": 32}, 58.4, 548.0, 1.0, 2.51),
        ("AMP", {"amp": True, "batch_size": 32}, 59.6, 537.0, 1.02, 1.32),
        ("batch 128", {"amp": True, "batch_size": 128}, 193.0, 663.0, 0.827, 4.41),
        ("uint8, normalised on the device", {"uint8": True, "amp": True, "batch_size": 128}, 98.2,
         1304.0, 0.42, 4.41),
        ("2 workers", {"num_workers": 2, "uint8": True, "amp": True, "batch_size": 128}, 66.9,
         1913.0, 0.286, 4.41),
    )  # fmt: skip
    base = Settings().as_dict()
    rows = tuple(
        trial(name, ms, settings={**base, **settings}, row=name, samples_per_s=rate, shares=None,
              time_ratio=ratio, cost_ms=58.4 * ratio, gpu_busy_share=0.2 + 0.1 * i,
              gpu_peak_allocated_bytes=round(1e9 * gb), gpu_peak_reserved_bytes=round(2e9 * gb))
        for i, (name, settings, ms, rate, ratio, gb) in enumerate(rungs)
    )  # fmt: skip
    skipped = trial("cudnn autotuner", None, settings={**rows[-1].settings, "amp": True},
                    row="cudnn autotuner", status="skipped", shares=None, time_ratio=None,
                    reason="not reached: the budget was over", gpu_peak_allocated_bytes=None,
                    gpu_peak_reserved_bytes=None, host_bytes=None, startup_s=None)  # fmt: skip
    ablation = AblationFacts(
        plain_ms=estimate(58.4, 1.2),
        no_input_ms=estimate(14.6, 0.5),
        no_copy_ms=estimate(14.2, 0.5),
        input_ms=estimate(43.8, 1.3),
        copy_ms=estimate(0.4, 0.2),
        n_rounds=4,
    )
    given = facts(
        command="sweep",
        shares=shares(input=0.75, copy=0.01, host=0.08, compute=0.16),
        step=step_facts(estimate(58.4, 1.2), samples_per_step=32.0),
        ablation=ablation,
    )
    code = "train.py:41\n- loader = DataLoader(train_set, batch_size=32)\n"
    code += "+ loader = DataLoader(train_set, batch_size=128, num_workers=2)"
    measured: dict[str, Any] = {
        "code": code, "measured_step_ms": 16.7, "measured_ci_ms": (16.4, 17.0),
        "predicted_step_ms": None, "predicted_from": None,
    }  # fmt: skip
    return input_bound(
        facts=given,
        trials=(*rows, skipped),
        findings=(replace(IN_MAIN, share=0.75, evidence={}),),
        recommendations=(
            recommendation("num_workers", 0, 2, **measured),
            recommendation("batch_size", 32, 128, **measured),
        ),
        not_advised=(),
        claims=(
            {"claim": "samples/s with 'AMP' (baseline 100 %)", "published": "144 %",
             "ours": "98 %", "verdict": "disagrees"},
            {"claim": "AMP halves GPU memory", "published": "2.51 → 1.32 GB", "ours": "-47 %",
             "verdict": "agrees"},
            {"claim": "pinning lifts the GPU's busy share", "published": "79.5 → 86.2 %",
             "ours": None, "verdict": "not testable here", "reason": "a row it needs was skipped"},
        ),
    )  # fmt: skip


def healthy() -> model.Report:
    """Enough workers: bound by compute."""
    return verdict(
        "compute",
        "none",
        facts=facts(
            shares=shares(compute=0.962, copy=0.012, input=0.001, host=0.025),
            step=step_facts(estimate(5.152, 0.016)),
            ablation=AblationFacts(
                plain_ms=estimate(5.152, 0.016),
                no_input_ms=estimate(5.146, 0.008),
                no_copy_ms=estimate(5.083, 0.008),
                input_ms=estimate(0.006, 0.02),
                copy_ms=estimate(0.064, 0.01),
                n_rounds=6,
            ),
        ),
    )


def cpu_only() -> model.Report:
    """No accelerator, workers recorded, nothing tried."""
    workers = WorkerFacts(
        n_workers=2,
        n_batches=80,
        batch_ms=41.2,
        fetch_ms=40.1,
        collate_ms=1.1,
        sampler_ms=0.02,
        cpu_share=0.98,
        sample_ms_quantiles=(1.0, 1.1, 1.2, 1.25, 1.3, 1.4, 1.6, 2.0),
        n_samples=2560,
        queue_put_ms=0.1,
        idle_share=0.01,
        n_idle_workers=0,
        n_threads=1,
        cores=((0, 1), (0, 1)),
        head_of_line_ms=0.0,
        pin_ms=None,
        pin_busy_share=None,
        transforms=(("RandomCrop", 0.3), ("ToTensor", 0.8)),
        lines=(
            LineHotspot(
                file="data.py",
                line=17,
                function="__getitem__",
                code="x = decode(raw)",
                n_stack_samples=71,
                of_stack_samples=100,
            ),
        ),
        first_touch_ratio=1.0,
    )
    return verdict(
        "input",
        "moderate",
        facts=facts(
            shares=shares(input=0.12, compute=0.8, host=0.08, copy=None, communication=None),
            hidden=Hidden(input_ms=None, copy_ms=None),
            trace=None,
            workers=workers,
            ablation=None,
            profiler_overhead=None,
            step=step_facts(estimate(24.0, 0.9), clock="host", boundary_ms=None),
        ),
        findings=(
            Finding(
                kind=Kind.CPU_SATURATED_WORKERS,
                severity=Severity.MODERATE,
                share=0.12,
                summary="Both workers compute all the time, and there are 2 usable CPUs.",
                evidence={"cpu_share": 0.98, "usable_cpus": 2.0},
                advice="Decode less per sample, or store what is decoded.",
            ),
        ),
        environment=None,
    )


def trial(label: str, step_ms: float | None, **changes: Any) -> model.Trial:
    part = shares(input=0.2, copy=0.05, compute=0.55, host=0.2)
    given: dict[str, Any] = {
        "settings": {"num_workers": 0, "pin_memory": None, "background": None},
        "label": label,
        "status": "ok",
        "step_ms": step_ms,
        "step_ms_ci": None if step_ms is None else (step_ms * 0.98, step_ms * 1.02),
        "samples_per_s": None if step_ms is None else 64_000 / step_ms,
        "startup_s": 0.21,
        "epoch_s": None if step_ms is None else step_ms * 0.938 + 0.21,
        "shares": model.Shares(**part.as_dict()),
        "gpu_peak_allocated_bytes": 1_320_000_000,
        "gpu_peak_reserved_bytes": 2_510_000_000,
        "host_bytes": 3_400_000_000,
        "n_windows": 4,
        "window_ms": () if step_ms is None else (step_ms * 0.99, step_ms * 1.01),
    }
    return model.Trial(**(given | changes))


def tried(settings: Settings, step_ms: float | None, **changes: Any) -> model.Trial:
    """A trial as a sweep names it."""
    return trial(settings.label(), step_ms, settings=settings.as_dict(), **changes)


def sweep() -> model.Report:
    """Five combinations: two tied for the best, one failed, one skipped."""
    trials = (
        tried(Settings(num_workers=0), 13.1),
        tried(Settings(num_workers=4, prefetch_factor=2), 3.4),
        tried(Settings(num_workers=7, persistent_workers=True), 2.31),
        tried(
            Settings(
                num_workers=15,
                prefetch_factor=4,
                persistent_workers=True,
                pin_memory=True,
                non_blocking=True,
            ),
            2.35,
        ),
        tried(Settings(num_workers=4, background="host"), None, status="failed", shares=None,
              reason="RuntimeError: the worker (pid 4711) was killed by signal 7"),
        tried(Settings(num_workers=0, resident=True), None, status="skipped", shares=None,
              reason="the dataset is larger than the device's free memory"),
    )  # fmt: skip
    return input_bound(
        facts=facts(command="sweep"),
        trials=trials,
        best=model.Best(trial=2, tied_with=(3,)),
        claims=(
            {"claim": "workers help only while load > compute", "published": None, "ours": 5.67,
             "verdict": "agrees"},
            {"claim": "pinning helps", "published": "-10 %", "ours": "not separable",
             "verdict": "not separable from noise"},
        ),
        warnings=(model.ReportWarning(kind="shared-gpu", text="another process uses the GPU."),),
    )  # fmt: skip


def several_ranks() -> model.Report:
    """Three ranks: one waits, one is waited for, the last one's trace is missing."""
    one = input_bound()
    assert one.shares is not None
    return input_bound(
        ranks=(
            model.Rank(
                rank=0,
                host="node1",
                step=one.step,
                shares=one.shares,
                peer_wait_ms=6.2,
                own_ms=6.9,
                trace="rank0.json.gz",
            ),
            model.Rank(
                rank=1,
                host="node2",
                step=one.step,
                shares=one.shares,
                peer_wait_ms=0.1,
                own_ms=13.0,
                trace="rank1.json.gz",
            ),
            model.Rank(rank=2, host="node2", step=one.step, shares=None, peer_wait_ms=None),
        )
    )


def nothing_recorded() -> model.Report:
    """No step at all."""
    return verdict(
        "unknown",
        "none",
        facts=facts(
            shares=None, hidden=None, step=None, trace=None, ablation=None,
            profiler_overhead=None, loaders=(),
        ),
        environment=None,
    )  # fmt: skip
