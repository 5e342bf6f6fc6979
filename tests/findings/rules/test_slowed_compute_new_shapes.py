"""Work that the model does anew for each new shape: compiled, tuned, or the loop's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.estimate import Estimate
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LoopLineFacts
from loaderdoctor.facts.loop import CompileFacts, NewShapeFacts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.slowed_compute import (
    autotuning_each_shape,
    compute_depends_on_new_shapes,
    recompilation,
)
from tests.findings.builders import ablation, estimate, healthy, loader, shares, trace
from tests.findings.case import Case, check_fires, check_silent
from tests.findings.rules.test_compute_hints import CALM
from tests.findings.rules.test_host_loop_work import lines, place

SIZE = "tensor 'x' size mismatch at index 1. expected 101, actual 102"


def compiling(**changes: Any) -> Facts:
    seen = CompileFacts(
        n=40, n_steps=40, ms_per_step=8.0, reason=SIZE, function="forward (model.py:12)"
    )
    facts = healthy()
    assert facts.step is not None
    return replace(facts, step=replace(facts.step, compiling=replace(seen, **changes)))


def new_shapes(
    cost_ms: Estimate | None, *, autotuner: bool = False, loop: LoopLineFacts | None = None
) -> Facts:
    facts = healthy()
    assert facts.machine is not None
    return replace(
        facts,
        ablation=replace(
            ablation(),
            new_shapes=NewShapeFacts(
                new_part=1.0,
                cost_ms=cost_ms,
                cost_share=cost_ms.scaled(0.1) if cost_ms is not None else None,
            ),
        ),
        machine=replace(facts.machine, cudnn_benchmark=autotuner),
        loop_lines=loop,
    )


RECOMPILES = Case(
    rule=recompilation,
    ill=compiling(),
    share=0.8,
    severity=Severity.HIGH,
    evidence={"compilations_per_step": 1.0, "compile_ms_per_step": 8.0, "reason": SIZE},
    says=("40 times in 40 steps", SIZE, "forward (model.py:12)", "dynamic=True"),
    silent={
        "once, late": compiling(n=1, ms_per_step=0.2),
        "nothing compiled": healthy(),
    },
    missing={"no plain windows": replace(compiling(), step=None)},
)
PLANS = Case(
    rule=compute_depends_on_new_shapes,
    ill=new_shapes(estimate(6.0), loop=lines(place())),
    share=0.6,
    severity=Severity.HIGH,
    evidence={"new_shape_ms_per_step": 6.0, "line": 16},
    says=("again for each new shape, most of it in shape_words", "100 %", "ad batches to"),
    silent={
        "within the noise": new_shapes(estimate(1.0, margin=2.0)),
        "next to nothing": new_shapes(estimate(0.2)),
        "alike": healthy(),
    },
    missing={
        "not handed out again": new_shapes(None),
        "one round": new_shapes(Estimate.around(6.0, float("inf"), n=1)),
        "no ablation": replace(healthy(), ablation=None),
    },
)
TUNES = Case(
    rule=autotuning_each_shape,
    ill=new_shapes(estimate(6.0), autotuner=True),
    share=0.6,
    severity=Severity.HIGH,
    evidence={"new_shape_ms_per_step": 6.0},
    says=("cudnn.benchmark is on", "cudnn.benchmark = False"),
    silent={
        "off": new_shapes(estimate(6.0)),
        "within the noise": new_shapes(estimate(1.0, margin=2.0), autotuner=True),
    },
    missing={"no machine": replace(new_shapes(estimate(6.0), autotuner=True), machine=None)},
)


def uncompared(
    *, host: float = 0.9, vary: bool = True, convolution_ms: float = 1.0, autotuner: bool = True
) -> Facts:
    """Steps too slow for ablation."""
    facts = healthy()
    assert facts.machine is not None
    return replace(
        facts,
        shares=shares(host=host),
        machine=replace(facts.machine, cudnn_benchmark=autotuner),
        loaders=(loader(shapes_vary=vary),),
        trace=trace(compute=replace(CALM, convolution_ms=convolution_ms)),
    )


SUSPECTS = Case(
    rule=autotuning_each_shape,
    ill=uncompared(),
    share=None,
    severity=Severity.UNCERTAIN,
    evidence={"host_ms_per_step": 9.0},
    says=("batches differ in shape", "was not measured", "cudnn.benchmark = False"),
    silent={
        "off": uncompared(autotuner=False),
        "one shape": uncompared(vary=False),
        "no convolutions": uncompared(convolution_ms=0.0),
        "the device computes": uncompared(host=0.1),
        "compared": replace(uncompared(), ablation=ablation()),
    },
    missing={
        "no trace": replace(uncompared(), trace=None),
        "no shares": replace(uncompared(), shares=None),
    },
)


def test_autotuning_that_was_not_compared_is_a_suspicion() -> None:
    check_fires(SUSPECTS)
    check_silent(SUSPECTS)


def test_recompilation() -> None:
    check_fires(RECOMPILES)
    check_silent(RECOMPILES)


def test_compute_depends_on_new_shapes() -> None:
    check_fires(PLANS)
    check_silent(PLANS)


def test_autotuning_each_shape() -> None:
    check_fires(TUNES)
    check_silent(TUNES)


def test_another_guard_than_a_shape_gets_other_advice() -> None:
    finding = recompilation(compiling(reason="self.step == 7"))
    assert finding is not None and finding.advice is not None
    assert "dynamic" not in finding.advice


def test_the_line_is_named_only_where_it_takes_most_of_it() -> None:
    little = place(n_samples=40)
    finding = compute_depends_on_new_shapes(new_shapes(estimate(6.0), loop=lines(little)))
    assert finding is not None and finding.evidence["line"] is None


def test_one_cause_is_told() -> None:
    tuned = new_shapes(estimate(6.0), autotuner=True, loop=lines(place()))
    kinds = {f.kind for f in find(tuned)}
    assert Kind.AUTOTUNING_EACH_SHAPE in kinds
    assert Kind.COMPUTE_DEPENDS_ON_NEW_SHAPES not in kinds
    compiled = replace(new_shapes(estimate(6.0)), step=compiling().step)
    kinds = {f.kind for f in find(compiled)}
    assert Kind.RECOMPILATION in kinds
    assert not kinds & {Kind.COMPUTE_DEPENDS_ON_NEW_SHAPES, Kind.WORK_BETWEEN_STEPS}
