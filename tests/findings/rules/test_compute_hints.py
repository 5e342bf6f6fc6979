"""Hints about computing: said of a step that computes, silent while it waits for its batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from loaderdoctor.advice.prescription import code_advice
from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.facts import Facts
from loaderdoctor.facts.trace import ComputeFacts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.compute_hints import (
    bias_before_batchnorm,
    cudnn_benchmark_off,
    data_parallel,
    grad_not_set_to_none,
    padding_waste,
    tf32_off,
)
from loaderdoctor.instrument.wire.records import ComputeRecord, PaddingRecord
from tests.findings.builders import (
    healthy,
    loader,
    machine,
    shares,
    trace,
    with_exposed,
)
from tests.findings.case import Case, fires, stays_silent

CALM = ComputeFacts(
    float32_gemm_ms=0.0,
    convolution_ms=0.0,
    zero_fill_ms=0.0,
    zero_grad_fill_ms=0.0,
    n_data_parallel_forwards=0.0,
    n_computing_devices=1,
    compute_major=9,
)
RECORD = ComputeRecord(n_steps=2, compute_major=9)


def seen(record: ComputeRecord | None = RECORD, flags: Any = None, **figures: Any) -> Facts:
    """A healthy run whose trace has these compute figures, whose process this record."""
    return healthy(
        trace=trace(compute=replace(CALM, **figures)),
        compute=record,
        machine=flags if flags is not None else machine(tf32=False, cudnn_benchmark=False),
    )


def starving(facts: Facts) -> Facts:
    """The same loop, waiting for its batches half of the step."""
    split = shares(input_=0.5)
    assert facts.trace is not None
    return replace(facts, shares=split, trace=replace(facts.trace, shares=split))


def host_bound(facts: Facts) -> Facts:
    """The same kernels in a step that waits for the host."""
    return replace(facts, shares=shares(host=0.8))


GEMM = seen(float32_gemm_ms=4.0)
CONV = seen(convolution_ms=3.0)
FILLS = seen(zero_fill_ms=0.6, zero_grad_fill_ms=0.4)
PARALLEL = seen(ComputeRecord(n_steps=2, n_replicas=4))
BIASED = seen(ComputeRecord(n_steps=2, biased=("stem.conv -> stem.norm", "block.0 -> block.1")))

CASES = (
    Case(
        rule=data_parallel,
        ill=PARALLEL,
        share=None,
        severity=Severity.LOW,
        evidence={"n_replicas": 4},
        says=("4 GPUs", "DistributedDataParallel"),
        silent={
            "the step starves": starving(PARALLEL),
            "one device": seen(n_data_parallel_forwards=1.0, n_computing_devices=1),
            "two devices, no DataParallel": seen(n_computing_devices=2),
        },
        missing={"everything": seen(None), "trace and record": healthy(trace=None)},
    ),
    Case(
        rule=tf32_off,
        ill=GEMM,
        share=0.4,
        severity=Severity.LOW,
        evidence={"float32_gemm_ms_per_step": 4.0, "compute_major": 9, "tf32": False},
        says=("4.00 ms", "40 %", "changes numerics"),
        silent={
            "allowed already": seen(float32_gemm_ms=4.0, flags=machine(tf32=True)),
            "few such products": seen(float32_gemm_ms=0.3),
            "no TF32 in this device": seen(float32_gemm_ms=4.0, compute_major=7),
            "the step starves": starving(GEMM),
            "the step waits for the host": host_bound(GEMM),
        },
        missing={
            "capability": seen(None, float32_gemm_ms=4.0, compute_major=None),
            "trace": replace(GEMM, trace=None),
            "figures": replace(GEMM, trace=trace()),
        },
    ),
    Case(
        rule=grad_not_set_to_none,
        ill=FILLS,
        share=0.04,
        severity=Severity.LOW,
        evidence={"zero_fill_ms_per_step": 0.4},
        says=("0.40 ms of the step (4 %)", "Dropping them"),
        silent={
            "hardly anything": seen(zero_grad_fill_ms=0.05),
            "zeros of another kind": seen(zero_fill_ms=0.6),
            "the step starves": starving(FILLS),
        },
        missing={"trace": replace(FILLS, trace=None), "figures": replace(FILLS, trace=trace())},
    ),
    Case(
        rule=cudnn_benchmark_off,
        ill=CONV,
        share=None,
        severity=Severity.LOW,
        evidence={"convolution_ms_per_step": 3.0, "convolution_share": 0.3},
        says=("3.00 ms", "one shape", "autotuner is off"),
        silent={
            "on already": seen(convolution_ms=3.0, flags=machine(cudnn_benchmark=True)),
            "shapes vary": replace(CONV, loaders=(loader(shapes_vary=True),)),
            "few convolutions": seen(convolution_ms=1.0),
            "the step starves": starving(CONV),
            "the step waits for the host": host_bound(CONV),
        },
        missing={
            "flag": seen(convolution_ms=3.0, flags=machine()),
            "batches": replace(CONV, loaders=(loader(batch=()),)),
            "loaders": replace(CONV, loaders=()),
            "trace": replace(CONV, trace=None),
        },
    ),
    Case(
        rule=bias_before_batchnorm,
        ill=BIASED,
        share=None,
        severity=Severity.LOW,
        evidence={"n_layers": 2, "first": "stem.conv -> stem.norm"},
        says=("2 layers add a bias", "stem.conv -> stem.norm"),
        silent={"no such layer": seen(), "the step starves": starving(BIASED)},
        missing={"record": replace(BIASED, compute=None)},
    ),
)


test_a_hint_is_given_with_its_figures = fires(CASES)
test_look_alikes_and_missing_facts_give_no_hint = stays_silent(CASES)


def test_a_trace_alone_shows_data_parallel_float32_products_and_zero_fills() -> None:
    figures = replace(
        CALM,
        float32_gemm_ms=4.0,
        zero_grad_fill_ms=0.4,
        n_data_parallel_forwards=1.0,
        n_computing_devices=2,
    )
    kinds = {f.kind for f in find(facts_of_trace(trace(compute=figures)))}
    assert kinds == {Kind.DATA_PARALLEL, Kind.TF32_OFF, Kind.GRAD_NOT_SET_TO_NONE}


def test_where_the_loop_was_seen_to_ask_for_zeros_all_of_its_fills_count() -> None:
    record = replace_record(n_zero_fills=2, zero_fill_site="train.py:9")
    found = grad_not_set_to_none(seen(record, zero_fill_ms=0.6))
    assert found is not None
    assert found.share == pytest.approx(0.06)
    assert "at train.py:9" in found.summary


def test_hints_come_after_every_other_finding() -> None:
    slow_copies = with_exposed(copy=0.3)
    assert slow_copies.trace is not None
    facts = replace(
        slow_copies,
        trace=replace(slow_copies.trace, compute=CALM),
        compute=replace_record(biased=("a -> b",)),
    )
    found = find(facts)
    assert len(found) > 1
    assert [f.kind for f in found if f.severity is Severity.LOW][-1] is Kind.BIAS_BEFORE_BATCHNORM
    assert found[0].severity is not Severity.LOW


PADDED = PaddingRecord(path="['input_ids']", share=0.4, n_batches=4)


def padded(padding: PaddingRecord | None = PADDED, **changes: Any) -> Facts:
    return replace(seen(), loaders=(loader(padding=padding),), **changes)


def test_padding_is_told_with_the_most_that_bucketing_gains() -> None:
    facts = padded()
    compute = facts.share("compute")
    assert compute is not None
    found = padding_waste(facts)
    assert found is not None and found.severity is Severity.LOW and found.share is not None
    assert found.share == pytest.approx(0.4 * min(1.0, compute + (facts.share("copy") or 0.0)))
    assert "40 % of the cells of the batch's ['input_ids'] are padding (4 batches" in found.summary
    assert "up to" in found.summary and (found.advice or "").startswith("Put samples of about")
    (advice,) = [a for a in code_advice(facts, [found]) if a.kind is Kind.PADDING_WASTE]
    assert advice.bound_ms == pytest.approx(found.share * (facts.step_ms or 0.0))
    assert advice.predicted_from == "trace" and advice.code is None
    fixed = padding_waste(padded(replace_padding(one_length=True)))
    assert fixed is not None and (fixed.advice or "").startswith("Pad to the longest sample")


def test_little_padding_or_a_step_that_waits_is_no_padding_waste() -> None:
    assert padding_waste(padded(None)) is None
    assert padding_waste(padded(replace_padding(share=0.04))) is None
    assert padding_waste(starving(padded())) is None
    assert padding_waste(padded(shares=None, trace=None)) is None


def replace_padding(**changes: Any) -> PaddingRecord:
    return msgspec.structs.replace(PADDED, **changes)


def replace_record(**changes: Any) -> ComputeRecord:
    return ComputeRecord(**{"n_steps": 2, "compute_major": 9, **changes})
