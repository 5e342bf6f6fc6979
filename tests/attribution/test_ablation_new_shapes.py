"""What new shapes cost is computing: from pairs of windows, and from what compilers counted."""

from __future__ import annotations

import pytest
from msgspec import structs

from loaderdoctor.attribution.ablation import Round, ablation_facts, computing_new_shapes
from loaderdoctor.attribution.combine import facts_of_run
from loaderdoctor.attribution.step import step_facts
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.facts.step import Hidden, Shares
from loaderdoctor.instrument.wire.measured import CompileRecord, ReadyRecord
from loaderdoctor.instrument.wire.protocol import WindowDone
from tests.attribution.builders import observed, window
from tests.findings import builders

NEW = ReadyRecord(n_batches=10, n_new=10)


def made_ahead(ms: float, ready: ReadyRecord = NEW) -> WindowDone:
    return structs.replace(window("no_input", [ms] * 8), ready=ready)


def rounds(plain: list[float], new: list[float], again: list[float]) -> list[Round]:
    return [
        Round(
            plain=window("plain", [p] * 8, waits_ms=[0.01] * 8),
            no_input=made_ahead(n),
            again=made_ahead(a),
        )
        for p, n, a in zip(plain, new, again, strict=True)
    ]


def host_bound() -> Shares:
    return Shares(compute=0.02, communication=None, copy=None, input=0.0, host=0.98, other=0.0)


def test_the_same_batches_again_show_what_new_shapes_cost() -> None:
    found = ablation_facts(
        rounds([60.0, 61.0, 62.0], [60.5, 61.0, 61.0], [0.5, 0.6, 0.4]),
        steps_per_epoch=None,
        boundary_ms=None,
    )
    assert found is not None and found.new_shapes is not None and found.new_shapes.cost_ms
    assert found.new_shapes.new_part == 1.0
    assert found.new_shapes.cost_ms.value == pytest.approx(60.3, rel=0.01)


@pytest.mark.parametrize(("n_steps", "bounded"), [(5, True), (3, False)])
def test_one_round_of_slow_steps_is_told_batch_by_batch(n_steps: int, bounded: bool) -> None:
    new = structs.replace(
        window("no_input", [420.0, 300.0, 500.0, 450.0, 380.0][:n_steps]), ready=NEW
    )
    one = Round(
        plain=window("plain", [430.0] * n_steps),
        no_input=new,
        again=structs.replace(window("no_input", [2.0] * n_steps), ready=NEW),
    )
    found = ablation_facts([one], steps_per_epoch=None, boundary_ms=None)
    assert found is not None and found.new_shapes is not None
    share = found.new_shapes.cost_share
    assert share is not None and share.bounded == bounded
    assert share.value > 0.98


def test_alike_batches_say_nothing_of_new_shapes() -> None:
    alike = [Round(plain=window("plain", [9.0] * 4), no_input=window("no_input", [3.0] * 4))] * 2
    found = ablation_facts(alike, steps_per_epoch=None, boundary_ms=None)
    assert found is not None and found.new_shapes is None


def test_work_for_new_shapes_computes_and_is_not_the_hosts() -> None:
    seen = rounds([60.0, 61.0, 62.0], [40.0, 40.0, 40.0], [2.0, 2.0, 2.0])
    ablation = ablation_facts(seen, steps_per_epoch=None, boundary_ms=None)
    step = step_facts(observed(), [r.plain for r in seen])
    assert step is not None
    found = computing_new_shapes(host_bound(), step, ablation)
    assert found is not None
    assert found.compute == pytest.approx(0.95)  # at whatever pace that was measured
    assert found.host == pytest.approx(0.05)
    assert computing_new_shapes(host_bound(), step, None) == host_bound()
    assert computing_new_shapes(None, step, ablation) is None


def test_a_plan_for_each_shape_is_compute_bound() -> None:
    """Its trace says host: a busy loop of Python between two operators."""
    seen = rounds([60.0, 61.0, 62.0], [60.5, 61.0, 61.0], [0.5, 0.6, 0.4])
    facts = facts_of_run(
        command="diagnose",
        step=step_facts(observed(), [r.plain for r in seen]),
        trace=builders.trace(
            n_steps=8, wall_ms=61.0, step_walls_ms=(61.0,) * 8, shares=host_bound(),
            hidden=Hidden(input_ms=0.0, copy_ms=None), has_accelerator=False,
        ),
        ablation=ablation_facts(seen, steps_per_epoch=None, boundary_ms=None),
        workers=None,
        observed=observed(),
    )  # fmt: skip
    assert judge_run(facts) == ("compute", "none")


def test_compilers_are_counted_over_plain_windows() -> None:
    plain = [
        structs.replace(
            window("plain", [10.0] * 4), compiles=CompileRecord(n=4, ns=32_000_000, reason="a")
        ),
        window("plain", [10.0] * 4),
    ]
    step = step_facts(observed(), plain)
    assert step is not None and step.compiling is not None
    assert (step.compiling.n, step.compiling.n_steps) == (4, 8)
    assert step.compiling.ms_per_step == pytest.approx(4.0)
    assert step.compiling.reason == "a"
    calm = step_facts(observed(), [window("plain", [10.0] * 4)])
    assert calm is not None and calm.compiling is None
