"""What to try: which settings, in which order, with which prediction, and the lines to write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.advice import Candidate
from loaderdoctor.advice.code import edits_for
from loaderdoctor.advice.ideas import CHANGES
from loaderdoctor.advice.prescription import candidates, code_advice, not_advised, prescribe
from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.input_parts import pool_ms
from loaderdoctor.findings.rules import find
from loaderdoctor.settings import Settings
from tests.advice.printed import SCRIPTS, facts_of
from tests.findings.builders import (
    FLOAT_IMAGE,
    LABELS,
    copy_facts,
    healthy,
    loader,
    machine,
    shares,
    step,
    trace,
    transfer,
    with_exposed,
    workers,
)
from tests.findings.routes_facts import starved
from tests.findings.rules.test_batch_making_startup import CHEAP, joined


def proposed(facts: Facts) -> tuple[Candidate, ...]:
    return candidates(facts, find(facts))


def by_settings(facts: Facts) -> dict[Settings, Candidate]:
    return {c.settings: c for c in proposed(facts)}


def loop_loads(**more: object) -> Facts:
    """No workers: 7 of 10 ms a step make the batch, the CPU busy throughout."""
    facts = with_exposed(
        input_=0.7,
        loaders=(
            loader(
                settings={"num_workers": 0, "prefetch_factor": None},
                code="loader = DataLoader(dataset, batch_size=64, pin_memory=True)",
            ),
        ),
        workers=workers(n_workers=0, batch_ms=7.0, cores=()),
        step=step(raw_wait_ms=7.0, worker_cpu_cores=None),
    )
    return replace(facts, **more)  # type: ignore[arg-type]


def test_nothing_is_worth_changing_in_a_healthy_run() -> None:
    for facts in (healthy(), with_exposed()):
        nothing = prescribe(facts, find(facts))
        assert not nothing.candidates
        assert not nothing.not_advised
        assert not nothing.advice


def test_a_trace_alone_has_no_settings_to_change() -> None:
    seen = trace(shares=shares(input_=0.7), fetch_kind="single-process", raw_wait_ms=7.0)
    assert proposed(facts_of_trace(seen)) == ()


def test_a_stream_is_told_to_yield_batches_itself() -> None:
    """torch's fetcher of an iterable dataset calls no `__getitems__`."""
    tiny = Finding(
        kind=Kind.OVERHEAD_BOUND_LOADER, severity=Severity.HIGH, share=0.5, summary="", advice="",
        evidence={"sample_us": 9.0},
    )  # fmt: skip
    for kind, says in (("iterable", "`__iter__` yield"), ("map", "__getitems__")):
        (advice,) = code_advice(loop_loads(loaders=(loader(kind=kind),)), [tiny])
        assert says in advice.idea


@pytest.mark.parametrize("buffer", ["replay", None])
def test_no_worker_does_what_fills_the_buffer_that_its_dataset_reads(buffer: str | None) -> None:
    work = Finding(
        kind=Kind.WORK_BETWEEN_STEPS, severity=Severity.HIGH, share=0.5, summary="", advice="",
        evidence={"what": "numpy", "before_forward_pass": True},
    )  # fmt: skip
    facts = loop_loads(loaders=(loader(safety={"changed_while_read": buffer}),))
    (advice,) = code_advice(facts, [work])
    assert ("collate_fn" in advice.idea) == (buffer is None)


def test_workers_are_batch_cost_over_the_rest_of_the_step_and_its_neighbours() -> None:
    found = by_settings(loop_loads())
    assert {s.num_workers for s in found if s.num_workers} == {1, 3, 5}
    # By the lower ends: of the rest, 3 ms ± 0.1, and of the step that the batch is a part of.
    assert found[Settings(num_workers=3)].predicted_step_ms == pytest.approx(2.9)
    assert found[Settings(num_workers=1)].predicted_step_ms == pytest.approx(0.99 * 7.0)
    best = proposed(loop_loads())[0]
    assert best.settings == Settings(num_workers=3)
    assert edits_for(loop_loads(), best.settings)[0].after == (
        "loader = DataLoader(dataset, batch_size=64, pin_memory=True, num_workers=3)"
    )
    assert best.live


def test_workers_that_burn_cpu_are_capped_by_the_usable_cpus() -> None:
    found = by_settings(loop_loads(machine=machine(usable_cpus=2.0)))
    assert {s.num_workers for s in found if s.num_workers} == {1, 2}
    # 10.0 ms ± 1 % of CPU time (step and batch together) on two CPUs, whatever the pool.
    assert found[Settings(num_workers=2)].predicted_step_ms == pytest.approx(0.99 * 5.0)
    assert found[Settings(num_workers=2)].prediction == (
        "the CPU time of a step and its batch spread over 2 usable CPUs, the limit here; 3 workers "
        "would keep up, this machine feeds about 2"
    )


def test_workers_that_wait_may_outnumber_the_cpus() -> None:
    facts = with_exposed(
        input_=0.9,
        workers=workers(n_workers=2, batch_ms=20.0, cpu_share=0.05, idle_share=0.0),
        loaders=(loader(settings={"num_workers": 2}),),
        machine=machine(usable_cpus=2.0),
        step=step(worker_cpu_cores=0.1, main_cpu_cores=0.3),
    )
    assert max(s.num_workers or 0 for s in by_settings(facts)) == 8


def test_short_epochs_want_new_workers_to_stay() -> None:
    short = loader(settings={"num_workers": 0, "prefetch_factor": None}, steps_per_epoch=20)
    found = by_settings(loop_loads(loaders=(short,)))
    assert all(s.persistent_workers for s in found if s.num_workers)
    assert not any(s.persistent_workers for s in by_settings(loop_loads()))
    for settings, one in found.items():
        copies = "Workers keep their copy of the dataset" in (one.caution or "")
        assert copies == bool(settings.persistent_workers)


def test_kept_workers_gain_their_startup() -> None:
    facts = with_exposed(
        input_=0.55,
        step=step(boundary_ms=40.0, steps_per_epoch=8),
        workers=workers(batch_ms=12.0),
    )
    (one,) = proposed(facts)
    assert one.settings == Settings(persistent_workers=True)
    # 5 of 10 ms ± 1 %, by the upper end of an input cost of 5.5 ± 0.1.
    assert one.predicted_step_ms == pytest.approx(9.9 - 5.0 * 5.6 / 5.5)
    assert "persistent_workers=True" in edits_for(facts, one.settings)[0].after


def test_workers_are_not_kept_where_the_loop_changes_the_dataset() -> None:
    facts = with_exposed(
        input_=0.55,
        step=step(boundary_ms=40.0, steps_per_epoch=8, changed="y"),
        workers=workers(batch_ms=12.0),
    )
    (found,) = (f for f in find(facts) if f.kind is Kind.WORKER_STARTUP_EACH_EPOCH)
    assert "changes y of the dataset" in found.summary
    assert "persistent_workers" not in {p.setting for p in found.predictions}
    made = prescribe(facts, find(facts))
    assert not any(c.settings.persistent_workers for c in made.candidates)
    assert (
        "`y` of the dataset"
        in {w.setting: w.reason for w in made.not_advised}["persistent_workers"]
    )


@pytest.mark.parametrize(
    ("code", "written"),
    [
        (
            "for x, y in DataLoader(ds, num_workers=4):",
            "# once, before the loop over the epochs:\n"
            "loader = DataLoader(ds, num_workers=4, persistent_workers=True)\n"
            "# in it, as before:\n"
            "for x, y in loader:",
        ),
        (
            "for i, (x, y) in enumerate(DataLoader(ds, num_workers=4)):",
            "# once, before the loop over the epochs:\n"
            "loader = DataLoader(ds, num_workers=4, persistent_workers=True)\n"
            "# in it, as before:\n"
            "for i, (x, y) in enumerate(loader):",
        ),
        (
            "train = DataLoader(ds, num_workers=4)",
            "# once, before the loop over the epochs:\n"
            "train = DataLoader(ds, num_workers=4, persistent_workers=True)",
        ),
    ],
)
def test_workers_of_a_loader_built_each_epoch_stay_where_it_moves_out(
    code: str, written: str
) -> None:
    built = loader(code=code)
    facts = with_exposed(
        input_=0.55,
        step=step(boundary_ms=40.0, steps_per_epoch=8, rebuilt=frozenset({built.id})),
        loaders=(built,),
        workers=workers(batch_ms=12.0),
    )
    one = by_settings(facts)[Settings(persistent_workers=True)]
    assert edits_for(facts, one.settings)[0].after == written


def pageable(**more: object) -> Facts:
    copies = (
        copy_facts(
            source="pageable",
            bytes_per_step=6e6,
            exposed_ms_per_step=3.0,
            busy_ms_per_step=2.9,
            host_blocked_ms_per_step=3.0,
        ),
    )
    facts = with_exposed(
        copy=0.3,
        loaders=(loader(settings={"pin_memory": False}, code="DataLoader(d, num_workers=4)"),),
        transfers=(
            transfer(pinned=False, non_blocking=False, code="x = x.to(device)"),
            transfer(pinned=False, non_blocking=False, code="y = y.to(device)", site="t.py:58"),
        ),
        trace=trace(shares=shares(copy=0.3), copies=copies),
    )
    return replace(facts, **more)  # type: ignore[arg-type]


def test_pinning_and_non_blocking_go_together() -> None:
    found = by_settings(pageable())
    both = found[Settings(pin_memory=True, non_blocking=True)]
    assert both.predicted_step_ms == pytest.approx(
        9.9 - 2.5 * 3.1 / 3.0
    )  # 3 ms less, 6 MB at 12 GB/s more
    assert [e.after for e in edits_for(pageable(), both.settings)] == [
        "DataLoader(d, num_workers=4, pin_memory=True)",
        "x = x.to(device, non_blocking=True)",
        "y = y.to(device, non_blocking=True)",
    ]


def test_what_the_user_does_already_is_not_advised() -> None:
    already = tuple(transfer(pinned=False, non_blocking=True) for _ in range(2))
    found = by_settings(pageable(transfers=already))
    assert Settings(pin_memory=True) in found
    assert not any(s.non_blocking for s in found)
    for candidate in proposed(loop_loads()):
        assert candidate.settings.pin_memory is None


def test_a_side_stream_gains_the_exposed_copy_and_no_more() -> None:
    copies = (copy_facts(exposed_ms_per_step=1.0, busy_ms_per_step=1.0),)
    facts = with_exposed(copy=0.1, trace=trace(shares=shares(copy=0.1), copies=copies))
    (one,) = proposed(facts)
    assert one.settings == Settings(side_stream=True)
    assert one.predicted_step_ms == pytest.approx(8.9)  # 9 ± 0.1 with ready copies
    assert "torch.cuda.Stream()" in edits_for(facts, one.settings)[0].after
    assert proposed(healthy(trace=trace(copies=copies))) == ()


def test_more_workers_and_a_better_copy_are_tried_together_first() -> None:
    facts = with_exposed(
        input_=0.4,
        copy=0.3,
        loaders=(
            loader(settings={"num_workers": 0, "prefetch_factor": None, "pin_memory": False}),
        ),
        workers=workers(n_workers=0, batch_ms=4.0, cores=()),
        step=step(worker_cpu_cores=None),
        transfers=(transfer(pinned=False, non_blocking=False),),
        trace=trace(
            shares=shares(input_=0.4, copy=0.3),
            copies=(copy_facts(source="pageable", bytes_per_step=1.2e6, exposed_ms_per_step=3.0),),
        ),
    )
    first = proposed(facts)[0]
    assert first.settings.pin_memory
    assert first.settings.non_blocking
    assert first.settings.num_workers
    without = 9.9 - 2.9 * 3.1 / 3.0  # the step, with copies of 3 ms ± 0.1 of which 0.1 stay
    assert first.predicted_step_ms == pytest.approx(5.9 - (10.0 - without))
    assert {Kind.LOADER_IN_MAIN_PROCESS, Kind.PAGEABLE_COPY} <= set(first.kinds)


def test_a_small_dataset_of_tiny_samples_becomes_resident_and_gets_no_workers() -> None:
    tiny = workers(
        batch_ms=2.6, fetch_ms=2.0, collate_ms=0.6, n_samples=20_480,
        sample_ms_quantiles=(0.01,) * 8,
    )  # fmt: skip
    facts = with_exposed(
        input_=0.5, workers=tiny, loaders=(loader(n_samples=6400, code="DataLoader(d)"),)
    )
    found = by_settings(facts)
    resident = next(c for s, c in found.items() if s.resident)
    assert resident.predicted_step_ms == pytest.approx(4.7)  # 4.8 ± 0.1
    assert resident.caution is not None
    assert "919 MiB of device memory" in resident.caution
    assert Settings(num_workers=0) in found
    assert all((s.num_workers or 0) == 0 for s in found)
    for drawn in ({"randomness": ("Photos.augment",)}, {"augmentations": ("RandomCrop",)}):
        varied = replace(facts, loaders=(loader(n_samples=6400, code="DataLoader(d)", **drawn),))
        assert not any(s.resident for s in by_settings(varied))
    assert any(a.kind is Kind.OVERHEAD_BOUND_LOADER for a in prescribe(facts, find(facts)).advice)


def test_a_large_dataset_is_not_kept_on_the_device() -> None:
    assert not any(s.resident for s in by_settings(loop_loads()))


def test_a_stall_is_answered_with_any_order_or_a_longer_queue() -> None:
    found = by_settings(with_exposed(input_=0.6, workers=workers(head_of_line_ms=5.5)))
    assert found[Settings(in_order=False)].predicted_step_ms == pytest.approx(0.99 * 5.0)
    assert "reproducible" in (found[Settings(in_order=False)].caution or "")
    assert found[Settings(prefetch_factor=4)].predicted_step_ms is None
    assert list(found)[-1] == Settings(prefetch_factor=4)


def test_another_order_promises_no_more_than_the_stall() -> None:
    """What workers cost that start again each epoch, no order of batches saves."""
    short = step(boundary_ms=32.0, steps_per_epoch=8)
    found = by_settings(
        with_exposed(input_=0.6, step=short, workers=workers(batch_ms=8.0, head_of_line_ms=1.0))
    )
    at_best_ms = 9.9 - 1.0 * 6.1 / 6.0
    assert found[Settings(in_order=False)].predicted_step_ms == pytest.approx(at_best_ms)
    assert next(iter(found)) == Settings(persistent_workers=True)


def test_more_workers_are_not_promised_to_end_a_stall() -> None:
    facts = with_exposed(input_=0.8, workers=workers(batch_ms=20.0, head_of_line_ms=5.0))
    alone, _ = pool_ms(facts, 8, in_order=False)
    kept, how = pool_ms(facts, 8)
    assert alone is not None and kept == pytest.approx(alone + 5.0)
    assert "behind slow batches" in how


def test_a_background_thread_is_tried_wherever_the_loop_makes_its_batches() -> None:
    thread = Settings(background="host")
    sleeps = workers(n_workers=0, batch_ms=7.0, cpu_share=0.05, cores=())
    found = by_settings(loop_loads(workers=sleeps))
    assert found[thread].predicted_step_ms == pytest.approx(0.99 * 7.0)
    burns = by_settings(loop_loads())[thread]
    assert burns.predicted_step_ms is None  # what releases the lock, only a trial tells
    assert burns.live
    (edit,) = edits_for(loop_loads(), burns.settings)
    assert not edit.exact and "BackgroundGenerator" in edit.after
    assert thread not in by_settings(with_exposed(input_=0.6, workers=workers()))
    framework = loader(settings={"num_workers": 0, "prefetch_factor": None}, library="lightning")
    assert thread not in by_settings(loop_loads(loaders=(framework,)))


def test_a_one_pass_loader_is_not_opened_again_for_a_thread() -> None:
    once = loader(settings={"num_workers": 0, "prefetch_factor": None}, safety={"one_pass": True})
    (thread,) = [c for s, c in by_settings(loop_loads(loaders=(once,))).items() if s.background]
    assert not thread.live
    assert "Not tried in this run" in (thread.caution or "")


def test_the_best_of_each_kind_is_tried_before_its_variants() -> None:
    found = list(by_settings(loop_loads()))
    assert found[0].num_workers in (3, 5)
    assert found[1] == Settings(background="host")
    assert [bool(s.num_workers) for s in found] == [True, False, True, True]


def test_a_background_thread_that_fights_for_the_gil_gives_way_to_workers() -> None:
    on = loader(settings={"num_workers": 0, "prefetch_factor": None, "background": "host"})
    facts = loop_loads(loaders=(on,), workers=workers(n_workers=0, batch_ms=7.0, cpu_share=0.98))
    assert Settings(num_workers=3, background="off") in by_settings(facts)


def test_a_pool_larger_than_the_cpus_may_shrink_but_not_grow() -> None:
    facts = with_exposed(
        input_=0.6,
        workers=workers(n_workers=12, batch_ms=120.0, idle_share=0.0),
        loaders=(loader(settings={"num_workers": 12}),),
        step=step(worker_cpu_cores=7.0, main_cpu_cores=0.9),
    )
    assert set(by_settings(facts)) == {Settings(num_workers=8)}


def test_a_one_pass_sampler_is_not_tried_in_the_running_loop() -> None:
    once = loader(
        settings={"num_workers": 0, "prefetch_factor": None},
        safety={"one_pass": True, "one_pass_reason": "its sampler keeps state"},
    )
    for candidate in proposed(loop_loads(loaders=(once,))):
        assert not candidate.live
        assert "its sampler keeps state" in (candidate.caution or "")


def test_code_advice_is_bounded_by_what_was_measured() -> None:
    facts = with_exposed(copy=0.3, loaders=(loader(batch=(FLOAT_IMAGE, LABELS)),))
    (advice,) = prescribe(facts, find(facts)).advice
    assert advice.kind is Kind.WIDE_DTYPE_COPY
    assert advice.bound_ms == pytest.approx(2.25, rel=0.01)
    assert advice.predicted_from == "ablation"
    assert advice.code is None and "8-bit" in advice.idea


@pytest.mark.parametrize(("cpus", "saved_ms"), [(8.0, 6.0), (2.0, 3.5)])
def test_no_more_is_promised_of_other_cores_than_they_can_do(cpus: float, saved_ms: float) -> None:
    """Of a step of 10 ms 6 ms are input; a batch takes 10 ms of CPU, the rest of the step 3 ms."""
    facts = with_exposed(
        input_=0.6,
        workers=workers(batch_ms=40.0, cpu_share=0.25, cores=((0,),) * 4),
        machine=machine(usable_cpus=cpus),
        step=step(main_cpu_cores=0.3),
    )
    advice = {a.kind: a for a in prescribe(facts, find(facts)).advice}
    found = advice[Kind.WORKERS_SHARE_A_CORE].bound_ms
    assert found == pytest.approx(saved_ms, abs=0.01)
    tried = by_settings(facts)[Settings(worker_cpus="all")]
    at_best_ms = 0.99 * (10.0 - saved_ms) if cpus < 8.0 else 3.9
    assert tried.predicted_step_ms == pytest.approx(at_best_ms, abs=0.01)


def test_transforms_go_to_the_device_only_where_ready_batches_proved_the_cpu_the_limit() -> None:
    facts = with_exposed(
        input_=0.6,
        workers=workers(batch_ms=40.0, idle_share=0.0),
        step=step(worker_cpu_cores=6.8, main_cpu_cores=1.0),
    )
    on_device = [a.title for a in prescribe(facts, find(facts)).advice]
    assert on_device == ["Move transforms from the workers to the device"]
    for less in (
        replace(facts, ablation=None),
        replace(facts, machine=machine(device_name=None)),
    ):
        assert prescribe(less, find(less)).advice == ()


def test_every_change_of_code_answers_a_kind_with_a_title() -> None:
    for kind, change in CHANGES.items():
        assert isinstance(kind, Kind)
        assert change.title[0].isupper()
        assert not change.title.endswith(".")


def test_advice_for_ranks_counts_all_ranks_of_the_machine() -> None:
    """Eight workers would keep up with a step of 1 ms; two ranks share the eight CPUs."""
    facts = loop_loads(workers=workers(n_workers=0, batch_ms=7.0, cores=(), cpu_share=1.0))

    def most(n_ranks: int | None) -> int:
        told = replace(facts, machine=machine(n_local_ranks=n_ranks))
        return max(s.num_workers or 0 for s in by_settings(told))

    alone = most(None)
    assert most(1) == alone
    assert most(2) < alone
    assert most(2) * 2 <= 8 * 1.5
    two = replace(facts, machine=machine(n_local_ranks=2))
    (chosen,) = [c for c in proposed(two) if c.settings.num_workers == most(2)]
    said = f"{most(2)} workers per rank, {2 * most(2)} in all: 2 ranks share"
    assert said in (chosen.caution or "")
    one = [c for c in proposed(facts) if c.settings.num_workers]
    assert all("per rank" not in (c.caution or "") for c in one)


def tiny_samples(**more: object) -> Facts:
    """A TensorDataset whose samples take what Python takes: 7 of 10 ms a step, in two workers."""
    changes = {"dataset": "TensorDataset", "collate": "default_collate", "batch_type": "list"}
    return with_exposed(
        input_=0.7,
        loaders=(loader(settings={"num_workers": 2}, **{**changes, **more}),),
        workers=workers(
            n_workers=2,
            batch_ms=14.0,
            fetch_ms=1.3,
            collate_ms=0.5,
            n_samples=6400,
            sample_ms_quantiles=(0.01, 0.01, 0.01, 0.02, 0.02, 0.02, 0.02),
        ),
    )


def test_rows_in_memory_are_tried_as_whole_batches_without_workers() -> None:
    facts = tiny_samples()
    assert Kind.OVERHEAD_BOUND_LOADER in {f.kind for f in find(facts)}
    one = by_settings(facts)[Settings(batched=True, num_workers=0)]
    assert one.live and not one.in_code and one.predicted_step_ms == pytest.approx(2.9)
    assert "at best" in one.prediction


def test_what_may_be_no_rows_is_not_tried_as_whole_batches() -> None:
    for facts in (tiny_samples(collate="pad"), tiny_samples(dataset="Mine"), loop_loads()):
        assert not any(s.batched for s in by_settings(facts))


def test_threads_are_tried_where_processes_cost_more_than_they_bring() -> None:
    handed_over = with_exposed(
        input_=0.3,
        loaders=(loader(settings={"num_workers": 1}),),
        workers=workers(
            n_workers=1, batch_ms=0.4, fetch_ms=0.1, collate_ms=0.3, idle_share=0.9, receive_ms=2.0
        ),
        machine=machine(usable_cpus=6.0),
    )
    assert Kind.OVERHEAD_BOUND_LOADER in {f.kind for f in find(handed_over)}
    threads = [c for s, c in by_settings(handed_over).items() if s.threads]
    (one,) = threads
    assert one.settings == Settings(threads=6, num_workers=0) and one.predicted_step_ms is None
    two_ranks = replace(handed_over, machine=machine(usable_cpus=6.0, n_local_ranks=2))
    assert Settings(threads=3, num_workers=0) in by_settings(two_ranks)
    assert "several threads at once" in (one.caution or "")


@pytest.mark.parametrize(("cpu_share", "tried"), [(0.95, False), (0.2, True)])
def test_the_loops_own_samples_are_tried_in_threads_where_they_leave_the_lock(
    cpu_share: float, tried: bool
) -> None:
    facts = loop_loads(
        workers=workers(n_workers=0, batch_ms=7.0, cores=(), cpu_share=cpu_share),
    )
    assert any(s.threads for s in by_settings(facts)) == tried


def test_many_small_copies_are_tried_as_one() -> None:
    copied = tuple(transfer(path=f"['x{i}']", n_bytes=64) for i in range(8))
    small = copy_facts(
        n_per_step=40.0, median_bytes=256.0, busy_ms_per_step=0.2, exposed_ms_per_step=0.6
    )
    facts = healthy(trace=trace(copies=(small,), host_exposed_ms=1.0), transfers=copied)
    (finding,) = [f for f in find(facts) if f.kind is Kind.MANY_SMALL_COPIES]
    (one,) = [c for s, c in by_settings(facts).items() if s.packed]
    assert finding.share is not None and one.predicted_step_ms is not None
    assert one.predicted_step_ms == pytest.approx(9.9 - 10.0 * finding.share * 7 / 8)
    measured = replace(facts, ablation=(ablation := with_exposed(input_=0.3).ablation))
    (one,) = [c for s, c in by_settings(measured).items() if s.packed]
    assert ablation is not None and ablation.no_copy_ms is not None
    assert one.predicted_step_ms == max(ablation.no_copy_ms.low, 0.0)  # handed over as one, too
    seen = with_exposed(input_=0.3)
    assert seen.ablation is not None
    unmeasured = replace(
        facts, shares=seen.shares, ablation=replace(seen.ablation, no_copy_ms=None)
    )
    (one,) = [c for s, c in by_settings(unmeasured).items() if s.packed]
    assert one.predicted_step_ms is not None and unmeasured.step_ms is not None
    assert one.predicted_step_ms < 0.7 * unmeasured.step_ms  # neither loader nor copies are left
    alone = replace(facts, transfers=copied[:1])
    assert not any(s.packed for s in by_settings(alone))


def test_code_is_tried_where_making_costs_the_step_and_no_finding_names_the_cause() -> None:
    facts = starved()
    (first, *_) = find(facts)
    result = prescribe(facts, [replace(first, kind=Kind.PAGEABLE_COPY)])
    assert any(c.in_code and c.settings.cache and not c.kinds for c in result.candidates)
    assert not any(c.in_code for c in prescribe(facts, []).candidates)


def test_a_loader_that_pins_in_vain_gets_workers_all_the_same() -> None:
    """`pin_memory=True` in a script that runs on a CPU does nothing, and forbids nothing."""
    pins = loader(settings={"num_workers": 0, "prefetch_factor": None, "pin_memory": True})
    facts = loop_loads(loaders=(pins,), machine=machine(device_name=None))
    assert facts.trace is not None
    on_cpu = replace(facts, trace=replace(facts.trace, has_accelerator=False))
    assert Settings(num_workers=3) in by_settings(on_cpu)
    assert all(not settings.pin_memory for settings in by_settings(on_cpu))


def test_no_workers_are_tried_first_where_starting_them_is_what_costs() -> None:
    """Their trial opens no pool, of which six loaders take the time there is."""
    facts = joined()
    first, *others = proposed(facts)
    assert first.settings == Settings(num_workers=0)
    assert Settings(persistent_workers=True) in [c.settings for c in others]
    dear = replace(CHEAP, batch_ms=0.7)  # 2.1 of the 7 ms that starting workers takes
    dearer = tuple(replace(dear, loader=x.loader) for x in facts.other_workers)
    assert proposed(joined(workers=dear, other_workers=dearer))[0].settings.persistent_workers


def test_rows_are_not_indexed_at_once_where_the_script_gives_the_dataset_others() -> None:
    facts = facts_of(SCRIPTS / "plain.py")
    (loader_,) = facts.loaders
    one = Candidate(
        settings=Settings(batched=True),
        kinds=(),
        loader=loader_.id,
        predicted_step_ms=None,
        prediction="",
    )
    assert not_advised(facts, [one]) == ()
    text = (SCRIPTS / "plain.py").read_text()
    line = next(x for x in text.splitlines() if "train loop" in x)
    indent = line[: len(line) - len(line.lstrip())]
    told = text.replace(line, f"{indent}loader.dataset.labels = 1\n{line}")
    again = facts_of(SCRIPTS / "plain.py", text=told)
    assert [w.setting for w in not_advised(again, [one])] == ["batched"]
