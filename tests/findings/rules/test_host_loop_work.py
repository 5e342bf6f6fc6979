"""Work of the loop's own: by stack samples of it, else by what its trace names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.advice.prescription import code_advice
from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.verdict import judge_run
from loaderdoctor.facts.host import CodeLine, LoopLineFacts, LoopPlace
from loaderdoctor.facts.loop import AblationFacts
from loaderdoctor.facts.trace import HostHotspot
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.host import work_between_steps
from tests.findings.builders import ablation, healthy, machine, shares, step, trace
from tests.findings.case import Case, fires, stays_silent
from tests.trace_facts import changed

LOGGING = HostHotspot(name="Python between SGD.step and the fetch", ms_per_step=4.0)
FRAME = HostHotspot(name="train.py(57): log", ms_per_step=9.0, file="train.py", line=57)
WORK = trace(shares=shares(host=0.5), host_exposed_ms=5.0, host_hotspots=(LOGGING,))
WORDS = CodeLine(file="/u/train.py", line=16, function="shape_words", code="total += value")
CALLED = CodeLine(file="/u/train.py", line=31, function="<module>", code="t = shape_words(x)")


def place(**changes: Any) -> LoopPlace:
    found = LoopPlace(
        named="function",
        at=WORDS,
        called_from=CALLED,
        what="elements",
        calls=None,
        library=None,
        n_samples=240,
        of_samples=400,
        low_share=0.55,
        between=("the fetch", "the forward pass"),
    )
    return replace(found, **changes)


def lines(*places: LoopPlace, own: float = 0.6, **changes: Any) -> LoopLineFacts:
    found = LoopLineFacts(
        n_samples=400,
        own_share=own,
        own_low_share=own - 0.05,
        waiting_share=0.0,
        operator_share=0.0,
        places=places,
    )
    return replace(found, **changes)


SAMPLED = healthy(
    shares=shares(host=0.8), trace=trace(shares=shares(host=0.8)), loop_lines=lines(place())
)
ITEM = place(named="line", at=CALLED, what="item", calls="x.item", n_samples=320, between=None)
READS = lines(own=0.05, waiting_share=0.8, waits=(ITEM,))

CASES = (
    Case(
        rule=work_between_steps,
        ill=SAMPLED,
        share=0.6,
        severity=Severity.HIGH,
        evidence={"work_ms_per_step": 6.0, "line": 16, "what": "elements", "stack_samples": 240},
        says=(
            "6.00 ms of 10.0 ms a step go into work between the fetch and the forward pass",
            "shape_words (train.py:16), called at train.py:31 `t = shape_words(x)`",
            "240 of 400 stack samples",
            "collate_fn",
        ),
        silent={
            "little of it": replace(SAMPLED, loop_lines=lines(place(n_samples=12), own=0.03)),
            "hidden behind the accelerator": replace(SAMPLED, shares=shares(host=0.01)),
            "launching a small model": replace(SAMPLED, loop_lines=lines(own=0.02)),
            "spread over places too rare to name": replace(SAMPLED, loop_lines=lines(own=0.3)),
            "one read a step waits for the accelerator": replace(
                SAMPLED, loop_lines=READS, trace=trace(n_syncs_per_step=1.0)
            ),
        },
        missing={"samples and trace": healthy(trace=None)},
    ),
    Case(
        rule=work_between_steps,
        ill=healthy(shares=WORK.shares, trace=WORK),
        share=0.4,
        severity=Severity.HIGH,
        evidence={"work_ms_per_step": 4.0, "spot": LOGGING.name},
        says=("4.00 ms of 10.0 ms a step", "Python between SGD.step and the fetch"),
        silent={
            "little of it": healthy(
                shares=WORK.shares,
                trace=changed(WORK, host_hotspots=(replace(LOGGING, ms_per_step=0.3),)),
            ),
            "backward": healthy(
                shares=WORK.shares,
                trace=changed(
                    WORK,
                    host_hotspots=(
                        HostHotspot(name="backward (autograd thread)", ms_per_step=3.0),
                        HostHotspot(
                            name="Python between aten::ones_like and SGD.step", ms_per_step=1.0
                        ),
                    ),
                ),
            ),
            "launching from the loop's frame": healthy(
                shares=WORK.shares,
                trace=changed(WORK, host_hotspots=(replace(FRAME, ms_per_step=5.0),)),
            ),
            "hidden behind the accelerator": healthy(trace=replace(WORK, shares=shares())),
        },
        missing={
            "spots": healthy(shares=WORK.shares, trace=changed(WORK, host_hotspots=())),
            "trace": healthy(trace=None),
        },
    ),
)


test_the_rule_fires_with_its_figures = fires(CASES)
test_the_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_samples_are_believed_rather_than_the_trace() -> None:
    seen = healthy(shares=WORK.shares, trace=WORK, loop_lines=lines(own=0.02))
    assert work_between_steps(seen) is None


def test_no_more_is_claimed_than_the_accelerator_waits_for_the_host() -> None:
    finding = work_between_steps(replace(SAMPLED, shares=shares(host=0.3)))
    assert finding is not None and finding.share == pytest.approx(0.3)


def test_reading_values_one_by_one_is_work_where_there_are_many_a_step() -> None:
    many = replace(SAMPLED, loop_lines=READS, trace=trace(n_syncs_per_step=96.0))
    finding = work_between_steps(many)
    assert finding is not None and finding.share == pytest.approx(0.8)
    assert "x.item() (train.py:31)" in finding.summary
    assert ".tolist()" in (finding.advice or "")


def test_without_a_trace_samples_alone_tell() -> None:
    finding = work_between_steps(replace(SAMPLED, shares=None, trace=None))
    assert finding is not None and finding.share == pytest.approx(0.6)


@pytest.mark.parametrize(("own", "severity"), [(0.6, "high"), (0.1, "uncertain")])
def test_samples_make_a_host_verdict_certain_where_the_pace_changed(
    own: float, severity: str
) -> None:
    unsteady = replace(SAMPLED, profiler_overhead=0.5, loop_lines=lines(place(), own=own))
    assert judge_run(unsteady) == ("host", severity)


def test_own_work_that_samples_show_for_certain_goes_before_smaller_parts() -> None:
    """10 % of it beside 6 % of waiting was "input moderate", and alone nothing worth changing."""

    def judged(*, own: float, input_: float, **changes: Any) -> tuple[str, str]:
        split = shares(input_=input_, copy=0.0, host=0.14)
        on_cpu = trace(shares=split, has_accelerator=False)
        seen = lines(place(), own=own)
        given = {"shares": split, "trace": on_cpu, "loop_lines": seen, "step": step(clock="host")}
        return judge_run(healthy(**(given | changes)))

    assert judged(own=0.12, input_=0.06) == ("host", "moderate")
    assert judged(own=0.12, input_=0.01) == ("host", "moderate")
    assert judged(own=0.12, input_=0.08) == ("input", "moderate")  # 7 % of it are certain
    assert judged(own=0.12, input_=0.3) == ("input", "high")
    assert judged(own=0.09, input_=0.01) == ("compute", "none")
    rare = lines(own=0.12)  # no place to name
    assert judged(own=0.12, input_=0.01, loop_lines=rare) == ("compute", "none")
    # With an accelerator such work may be hidden, and the trace's share is the profiler's too.
    hidden = trace(shares=shares(host=0.14))
    assert judged(own=0.12, input_=0.01, trace=hidden) == ("compute", "none")


def test_own_work_goes_before_a_copy_that_leaves_the_device_unhidden() -> None:
    """33 ms of it and 21 of the device's in a row, as a copy waits: 55 ms, "copy, high, 27 %"."""

    def judged(own: float, ablated: AblationFacts | None, *, host: float = 0.34) -> tuple[str, str]:
        parts = shares(input_=0.0, copy=0.27, host=host)
        seen = trace(shares=parts)
        found = healthy(shares=parts, trace=seen, loop_lines=lines(place(), own=own))
        return judge_run(replace(found, ablation=ablated))

    known = ablation(input_ms=0.0, copy_ms=2.7)
    assert judged(0.6, known) == ("host", "high")
    assert judged(0.25, known) == ("copy", "high")  # what samples show is less than the copy
    assert judged(0.6, known, host=0.2) == ("copy", "high")  # most of it is hidden
    assert judged(0.6, None) == ("copy", "high")


def test_the_advice_fits_what_is_called_and_where() -> None:
    def advice(**changes: Any) -> str:
        found = work_between_steps(replace(SAMPLED, loop_lines=lines(place(**changes))))
        assert found is not None and found.advice is not None
        return found.advice

    assert "every n steps" in advice(between=("the optimizer's step", "the next fetch"))
    assert "columns once" in advice(what="table", library="pandas", calls="frame.iloc[]")
    assert "AveragedModel" in advice(what="deepcopy", library="copy", calls="copy.deepcopy")


def test_a_line_of_the_loop_is_named_where_the_trace_has_stacks() -> None:
    seen = trace(
        shares=shares(host=0.9), wall_ms=10.0, n_kernels_per_step=20.0, host_hotspots=(FRAME,)
    )
    finding = work_between_steps(facts_of_trace(seen))
    assert finding is not None
    # 20 kernels may take 2.4 ms to launch from that frame; what is beyond them is work.
    assert finding.share == pytest.approx(0.66)
    assert finding.evidence["line"] == 57
    assert "train.py(57): log" in finding.summary


def test_a_spot_is_given_in_the_time_of_steps_without_the_profiler() -> None:
    """Recording made the step 1.7 times as long: of its 17 ms, 6.8 are 4 of 10."""
    slowed = changed(
        WORK, wall_ms=17.0, host_hotspots=(replace(LOGGING, ms_per_step=6.8),), host_exposed_ms=8.5
    )
    finding = work_between_steps(healthy(shares=WORK.shares, trace=slowed))
    assert finding is not None
    assert finding.evidence["work_ms_per_step"] == pytest.approx(4.0)
    assert finding.evidence["spot_ms_per_step"] == pytest.approx(4.0)


def test_silence_within_the_backward_pass_is_no_work_of_the_loop() -> None:
    """Without an accelerator autograd runs on the training thread, and waits for the GIL there."""
    node = "autograd::engine::evaluate_function: "
    names = (f"Python between {node}AddmmBackward0 and {node}AccumulateGrad",)
    hotspots = tuple(HostHotspot(name=name, ms_per_step=4.0) for name in names)
    seen = changed(WORK, n_kernels_per_step=0.0, host_hotspots=hotspots)
    assert work_between_steps(healthy(shares=WORK.shares, trace=seen)) is None
    after = HostHotspot(name=f"Python between {node}AccumulateGrad and aten::mul", ms_per_step=4.0)
    seen = changed(seen, host_hotspots=(after,))
    assert work_between_steps(healthy(shares=WORK.shares, trace=seen)) is not None


def test_work_that_no_line_is_known_of_says_how_to_have_it_named() -> None:
    unnamed = work_between_steps(facts_of_trace(WORK))
    assert unnamed is not None and "names the line" in (unnamed.advice or "")
    seen = changed(WORK, n_kernels_per_step=0.0, host_hotspots=(FRAME,))
    named = work_between_steps(facts_of_trace(seen))
    assert named is not None and "names the line" not in (named.advice or "")


@pytest.mark.parametrize(("ms", "n", "found"), [(6.6, 1.0, True), (6.6, 40.0, False)])
def test_a_long_silence_between_two_ops_is_work_and_many_short_ones_are_launching(
    ms: float, n: float, found: bool
) -> None:
    silence = HostHotspot(
        name="Python between aten::to and aten::flatten", ms_per_step=ms, n_per_step=n
    )
    seen = trace(
        shares=shares(host=0.7), host_exposed_ms=7.0, host_hotspots=(silence,),
        n_kernels_per_step=67.0,
    )  # fmt: skip
    finding = work_between_steps(facts_of_trace(seen))
    assert (finding is not None) is found


def test_what_runs_between_epochs_is_named_where_it_is_what_costs() -> None:
    save = place(
        named="line", at=CALLED, what="save", calls="torch.save", library="torch",
        n_samples=90, of_samples=100, between=None,
    )  # fmt: skip
    between = lines(own=0.02, outside=(save,), outside_share=0.5)
    finding = work_between_steps(replace(SAMPLED, loop_lines=between))
    assert finding is not None and finding.share == pytest.approx(0.5)
    assert "between epochs" in finding.summary and "torch.save" in finding.summary
    healthy_host = replace(SAMPLED, shares=shares(host=0.02), loop_lines=between)
    assert work_between_steps(healthy_host) is None


def test_operators_on_single_elements_go_with_the_function_that_calls_them() -> None:
    """`logits[i].argmax().item()`: half of it counts as compute, and goes with the loop."""
    cpu = trace(shares=shares(host=0.3), has_accelerator=False)
    slow = place(what="item", n_samples=80, n_operators=100)
    host = replace(
        SAMPLED,
        shares=shares(host=0.3),
        trace=cpu,
        machine=machine(device_name=None),
        loop_lines=lines(slow, own=0.2),
    )
    finding = work_between_steps(host)
    assert finding is not None and finding.share == pytest.approx(0.45)
    assert "and 100 in operators that it calls" in finding.summary
    large = replace(host, loop_lines=lines(replace(slow, n_operators=300), own=0.2))
    finding = work_between_steps(large)
    assert finding is not None and finding.share == pytest.approx(0.2)


def test_a_loop_that_makes_its_own_batches_is_not_sent_to_its_loader() -> None:
    seen = replace(SAMPLED, loaders=())
    finding = work_between_steps(seen)
    assert finding is not None and "torch.randint" in (finding.advice or "")
    # Where in the step it lies is not known: nor, then, whether batches are made there.
    unknown = replace(seen, loop_lines=lines(place(between=None)))
    finding = work_between_steps(unknown)
    assert finding is not None and finding.advice is not None
    assert finding.advice.startswith("Where it makes batches: keep the data in one tensor")
    assert "collate_fn" not in finding.advice
    (way,) = code_advice(unknown, [finding])
    assert way.title.startswith("Draw batches from one tensor")
    of_loader = work_between_steps(SAMPLED)
    assert of_loader is not None
    (way,) = code_advice(SAMPLED, [of_loader])
    assert way.title == "Let the loader's workers do it, ahead of the loop"


def test_one_large_copy_to_the_host_counts_for_what_it_takes_with_its_size() -> None:
    cpu = place(named="line", at=CALLED, what="to-host", calls="out.cpu", between=None)
    copied = trace(
        shares=shares(host=0.5), n_syncs_per_step=1.0, to_host_ms=3.0,
        to_host_bytes=48.0 * 1024**2, n_to_host_per_step=1.0,
    )  # fmt: skip
    seen = replace(
        SAMPLED,
        trace=copied,
        shares=copied.shares,
        loop_lines=lines(own=0.03, waiting_share=0.8, waits=(cpu,)),
    )
    finding = work_between_steps(seen)
    assert finding is not None and finding.share == pytest.approx(0.33)
    assert "A step copies 48.0 MiB to the host, in 1 copy." in finding.summary


def test_work_that_may_be_making_batches_is_not_called_other_work() -> None:
    facts = facts_of_trace(changed(WORK, unmarked_wait_ms=3.9))
    found = work_between_steps(facts)
    assert found is not None
    assert found.severity is Severity.UNCERTAIN
    assert "Up to 3.90 ms of it may be making batches or waiting for them" in found.summary


def test_copies_to_the_host_are_told_from_python() -> None:
    copying = changed(WORK, to_host_ms=3.0, to_host_bytes=2.0**26)
    found = work_between_steps(healthy(shares=shares(host=0.5), trace=copying))
    assert found is not None
    assert "3.00 ms of it copy 64.0 MiB to the host." in found.summary
    little = work_between_steps(
        healthy(shares=shares(host=0.5), trace=changed(WORK, to_host_ms=0.1))
    )
    assert little is not None
    assert "to the host" not in little.summary
