"""Ways to cheaper batches that are no settings: which, in what order, what they save at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.advice import Candidate, CodeAdvice, Prescription
from loaderdoctor.advice.prescription import prescribe
from loaderdoctor.advice.routes import routes
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Finding, Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.instrument.wire.records import TensorRecord
from loaderdoctor.settings import Settings
from tests.findings.builders import machine, with_exposed
from tests.findings.routes_facts import BATCH, DECODING, THROUGH_PIL, starved

# A pool that keeps up: no route is about making batches.
KEEPS_UP: dict[str, Any] = {
    "machine_": machine(),
    "n_workers": 8,
    "workers_": {"batch_ms": 8.0, "fetch_ms": 7.0},
}
MOST = 7.1 / 7.0  # of what batches cost, 7 of 10 ms a step ± 0.1: a bound takes the upper end

IMAGES, CLASSES = BATCH
# Of a batch's bytes, what its images take more than as uint8: three quarters of them.
LESS = 0.75 * IMAGES.n_bytes / (IMAGES.n_bytes + CLASSES.n_bytes)


def titles(facts: Facts) -> list[str]:
    return [x.title for x in routes(facts)]


def one(facts: Facts, text: str) -> CodeAdvice:
    (found,) = [x for x in routes(facts) if text in x.title]
    return found


def test_digits_through_pil_are_sliced_cached_or_normalised_as_a_batch() -> None:
    facts = starved(workers_={"lines": (THROUGH_PIL,)})
    assert titles(facts) == [
        "Slice whole batches out of train_set.data, without PIL between",
        "Keep the samples in memory as they are first made (180 MiB)",
        "ToTensor and Normalize for the whole batch, not for each sample",
    ]
    slices, cache, batchwise = routes(facts)
    copied_ms = (64 * 784 * 4 + 512) / 100e6  # at the least: the batch is copied in the loop then
    assert slices.bound_ms == pytest.approx(7.0 * MOST - copied_ms)
    assert cache.bound_ms == pytest.approx(6.4 * MOST)
    collated_ms = LESS * 0.6
    assert batchwise.bound_ms == pytest.approx((64 * 0.07 + collated_ms) * MOST)
    assert "(44.9 MiB) is an array of all images; a sample takes 0.10 ms" in str(slices.evidence)
    assert "180 MiB of 64.0 GiB available" in str(cache.evidence)
    assert "ToTensor 0.050 ms, Normalize 0.020 ms a sample: 64 % of a batch" in str(
        batchwise.evidence
    )
    assert all(x.predicted_from == "ablation" for x in routes(facts))


def test_no_route_saves_more_than_the_loader_costs_and_the_largest_is_first() -> None:
    for n_workers in (0, 1, 3):
        facts = starved(n_workers=n_workers, workers_={"batch_ms": 40.0, "fetch_ms": 39.0})
        found = routes(facts)
        assert found
        bounds = [x.bound_ms or 0.0 for x in found]
        assert bounds == sorted(bounds, reverse=True)
        assert all(0.5 <= x <= 7.0 * MOST + 1e-9 for x in bounds)


def test_a_pool_that_is_a_little_short_needs_only_a_little_less_work() -> None:
    # Two workers hand out a batch every 10 ms and the rest of the step takes 3: a third less work
    # saves a third of the pool's time, not of what the loop waits.
    facts = starved(
        n_workers=2,
        workers_={"batch_ms": 20.0, "fetch_ms": 19.0, "transforms": (("ToTensor", 0.1),)},
    )
    part_ms = 64 * 0.1 + LESS * 1.0  # of its 20, the batch collated as bytes
    assert one(facts, "for the whole batch").bound_ms == pytest.approx(part_ms / 2 * MOST)


def test_random_transforms_keep_their_place_behind_the_cache() -> None:
    facts = starved(
        loader_={"augmentations": ("RandomCrop",)},
        workers_={
            "transforms": (("Resize", 0.04), ("RandomCrop", 0.02), ("ToTensor", 0.02)),
            "lines": (DECODING,),
        },
    )
    assert not any("one tensor" in t or "first made" in t for t in titles(facts))
    cache = one(facts, "Keep what comes before RandomCrop in memory")
    assert cache.bound_ms == pytest.approx((6.4 - 64 * 0.04) * MOST)
    assert cache.axis is None
    assert "RandomCrop must be drawn again each epoch, so only what comes before RandomCrop" in str(
        cache.evidence
    )
    not_advised = {w.setting: w.reason for w in prescribe(facts, find(facts)).not_advised}
    assert "RandomCrop must be drawn again in each epoch" in not_advised["cache"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"machine_": machine(memory_available_bytes=300_000_000)},
            "take about 180 MiB, and 286 MiB",
        ),
        ({"loader_": {"batch": ()}}, "is not known"),
    ],
)
def test_what_does_not_fit_is_not_tried_and_the_reason_said(
    change: dict[str, Any], reason: str
) -> None:
    facts = starved(**change)
    result = prescribe(facts, find(facts))
    assert not any(c.settings.cache for c in result.candidates)
    assert reason in {w.setting: w.reason for w in result.not_advised}["cache"]
    assert not any("memory" in way.title for way in result.routes)


def test_cached_samples_and_whole_batches_are_tried_after_the_settings() -> None:
    facts = starved(workers_={"lines": (THROUGH_PIL,)})
    result = prescribe(facts, find(facts))
    assert [c.settings for c in result.candidates if c.in_code] == [
        Settings(cache=True),
        Settings(uint8=True),
    ]
    order = [c.in_code for c in result.candidates]
    assert order == sorted(order) and not order[0]
    cache = next(c for c in result.candidates if c.settings.cache)
    assert cache.live and cache.predicted_step_ms == pytest.approx(9.9 - 6.4 * MOST)


def test_code_goes_before_the_settings_where_it_is_predicted_to_take_far_less() -> None:
    facts = starved(workers_={"lines": (THROUGH_PIL,)})
    result = prescribe(facts, find(facts))
    code, settings = result.live_code, result.live_settings
    ms = code[0].predicted_step_ms
    assert ms is not None

    def with_settings_of(predicted_ms: float | None, live: bool = True) -> Prescription:
        changed = [replace(c, predicted_step_ms=predicted_ms, live=live) for c in settings]
        return replace(result, candidates=(*changed, *code))

    assert with_settings_of(1.51 * ms).code_promises_more(9.9)
    assert not with_settings_of(1.49 * ms).code_promises_more(9.9)
    # Of settings that only a trial can tell of, or that none can try, nothing is promised.
    assert with_settings_of(None).code_promises_more(1.51 * ms)
    assert not with_settings_of(None).code_promises_more(1.49 * ms)
    assert with_settings_of(ms, live=False).code_promises_more(1.51 * ms)
    assert not replace(result, candidates=settings).code_promises_more(1000.0)
    unlike = replace(result, candidates=tuple(replace(c, live=False) for c in code))
    assert not unlike.code_promises_more(1000.0)


def test_of_code_the_best_prediction_is_tried_first() -> None:
    """Buffers that workers use again went before bytes for floats: 36 and 1 of 40 ms a step."""
    facts = starved(workers_={"lines": (THROUGH_PIL,)})
    result = prescribe(facts, find(facts))
    predicted = [
        replace(c, predicted_step_ms=ms) for c, ms in zip(result.live_code, (9.0, 3.0), strict=True)
    ]
    changed = replace(result, candidates=(*predicted, *result.live_settings))
    assert [c.predicted_step_ms for c in changed.live_code] == [3.0, 9.0]
    assert changed.live_settings == result.live_settings
    idea = replace(predicted[0], settings=Settings(reuse_buffers=True), predicted_step_ms=1.0)
    with_idea = replace(result, candidates=(idea, *predicted))
    assert [c.predicted_step_ms for c in with_idea.live_code] == [3.0, 9.0, 1.0]  # gets no figure
    assert with_idea.code_promises_more(4.5) and not with_idea.code_promises_more(4.4)
    not_live = replace(changed.candidates[1], live=False)
    left = replace(changed, candidates=(predicted[0], not_live))
    assert left.live_code == (predicted[0],) and not left.live_settings


def test_spawned_workers_would_each_hold_the_cache() -> None:
    facts = starved(n_workers=1, machine_=machine(start_method="spawn", device_name=None))
    result = prescribe(facts, find(facts))
    assert not any(c.settings.cache for c in result.candidates)
    assert any("not forked" in w.reason for w in result.not_advised)


def test_an_accelerator_can_take_the_transforms() -> None:
    facts = starved(machine_=machine())
    device = one(facts, "Move the transforms onto the H100")
    assert device.axis is None
    assert device.bound_ms == pytest.approx(64 * 0.07 * MOST)
    assert not any("H100" in t for t in titles(starved()))


@pytest.mark.parametrize("kind", [Kind.WIDE_DTYPE_COPY, Kind.PIN_THREAD_BOUND])
def test_bytes_are_tried_where_floats_are_what_copying_costs(kind: Kind) -> None:
    """A pool that keeps up: no route about making batches says it."""
    facts = starved(**KEEPS_UP, copy=0.2)
    finding = found(kind, 0.15 if kind is Kind.WIDE_DTYPE_COPY else 0.4)

    def tried(seen: Facts) -> list[Candidate]:
        return [c for c in prescribe(seen, [finding]).candidates if c.settings.uint8]

    (one,) = tried(facts)
    assert kind in one.kinds and one.in_code and one.live
    # Of 10, at 2.0 ± 0.1 of copies and 7.0 ± 0.1 of input; the first tells what is saved.
    most = 1.5 * 2.1 / 2.0 if kind is Kind.WIDE_DTYPE_COPY else LESS * 4.0 * MOST
    assert one.predicted_step_ms == pytest.approx(9.9 - most)
    (way,) = [w for w in prescribe(facts, [finding]).routes if w.axis == "uint8"]
    assert "div_(255)" in way.idea and way.kind is Kind.WIDE_DTYPE_COPY
    assert not tried(starved(n_workers=8, trace=None))  # no accelerator: nothing is copied
    features = {"transforms": (("Resize", 0.1),)}
    assert not tried(starved(machine_=machine(), n_workers=8, workers_=features))


def found(kind: Kind, share: float) -> Finding:
    return Finding(kind=kind, severity=Severity.HIGH, share=share, loader="loader:1", summary="")


def as_bytes(facts: Facts, *findings: Finding) -> tuple[float, float] | None:
    """(bound, predicted step) of images sent as bytes, in ms; None where they are not advised."""
    made = prescribe(facts, findings)
    tried = [c.predicted_step_ms for c in made.candidates if c.settings.uint8]
    bounds = [w.bound_ms for w in made.routes if w.axis == "uint8"]
    assert len(tried) == len(bounds) <= 1
    return (bounds[0] or 0.0, tried[0] or 0.0) if tried else None


PIN, WIDE = found(Kind.PIN_THREAD_BOUND, 0.4), found(Kind.WIDE_DTYPE_COPY, 0.15)


@pytest.mark.parametrize("n_workers", [0, 1, 8])
@pytest.mark.parametrize(
    "last",
    [("PILToTensor", "ConvertDtype"), ("ToImage", "ConvertImageDtype"), ("ToTensor", "Normalize")],
)
def test_bytes_are_not_advised_to_become_bytes(last: tuple[str, ...], n_workers: int) -> None:
    steps = (("Resize", 0.05), *((name, 0.02) for name in last))
    made = {"batch_ms": 8.0, "fetch_ms": 7.0, "transforms": steps}
    images = TensorRecord(path="[0]", shape=IMAGES.shape, dtype="uint8", n_bytes=64 * 784)
    targets = TensorRecord(path="[1]", shape=(64,), dtype="float32", n_bytes=256)

    def with_batch(*batch: TensorRecord) -> Facts:
        return starved(
            machine_=machine(), n_workers=n_workers, workers_=made, loader_={"batch": batch}
        )

    assert as_bytes(with_batch(images, targets), PIN, WIDE) is None
    assert as_bytes(with_batch(IMAGES, targets), PIN, WIDE) is not None


@pytest.mark.parametrize(("dtype", "n_bytes"), [("float16", 2), ("float32", 4), ("float64", 8)])
def test_what_bytes_save_goes_with_the_dtype(dtype: str, n_bytes: int) -> None:
    images = TensorRecord(path="[0]", shape=IMAGES.shape, dtype=dtype, n_bytes=64 * 784 * n_bytes)
    seen = as_bytes(starved(**KEEPS_UP, loader_={"batch": (images,)}), PIN)
    assert seen is not None
    assert seen[0] == pytest.approx((1 - 1 / n_bytes) * 4.0 * MOST)


def paced(pace: float, **more: Any) -> Facts:
    facts = starved(**KEEPS_UP, **more)
    assert facts.step is not None
    wall = facts.step.wall_ms
    wall = replace(wall, low=wall.value * pace, high=wall.value * (2 - pace))
    return replace(facts, step=replace(facts.step, wall_ms=wall))


def test_what_bytes_save_is_no_matter_of_the_pace_and_counts_once() -> None:
    """A bound is what is saved; of the step's pace only what is predicted has its part, once."""
    for findings in ((PIN,), (WIDE,), (PIN, WIDE)):
        steady, shaken = (as_bytes(paced(p, copy=0.2), *findings) for p in (1.0, 0.7))
        assert steady is not None and shaken is not None
        assert shaken[0] == pytest.approx(steady[0])
        assert steady[1] == pytest.approx(10.0 - steady[0])
        assert shaken[1] == pytest.approx(max(7.0 - steady[0], 0.9))


@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("pace", [1.0, 0.7, 0.3])
@pytest.mark.parametrize("copy", [0.02, 0.2])
def test_no_part_saves_more_than_it_takes(share: float, pace: float, copy: float) -> None:
    facts = paced(pace, copy=copy)
    ablation = facts.ablation
    assert ablation is not None and ablation.no_copy_ms is not None and ablation.copy_ms is not None
    every = [found(kind, share) for kind in (PIN.kind, WIDE.kind, Kind.BATCH_PAGE_FAULTS)]
    for n in (1, 2, 3):
        seen = as_bytes(facts, *every[:n])
        assert seen is not None
        bound_ms, predicted_ms = seen
        assert bound_ms <= 7.1 + (ablation.copy_ms.high if n > 1 else 0.0) + 1e-9
        assert predicted_ms >= ablation.no_copy_ms.low - 1e-9
    only_copies = as_bytes(facts, WIDE)
    assert only_copies is not None and only_copies[0] <= ablation.copy_ms.high + 1e-9


def test_what_is_not_known_of_copies_says_nothing_of_the_input() -> None:
    facts = starved(**KEEPS_UP)
    ablation = facts.ablation
    assert ablation is not None and ablation.copy_ms is not None
    open_ = replace(ablation, copy_ms=replace(ablation.copy_ms, value=0.3, low=-0.5, high=1.5))
    assert as_bytes(replace(facts, ablation=open_), PIN) == as_bytes(facts, PIN)


def test_a_route_of_its_own_is_not_added_to_what_the_pin_thread_takes() -> None:
    """Both make the same step wait: it is the slower that counts."""
    facts = starved(machine_=machine(), n_workers=1)
    alone = one(facts, "for the whole batch").bound_ms
    seen = as_bytes(facts, found(Kind.PIN_THREAD_BOUND, 0.3))
    assert seen is not None and alone is not None
    assert alone > LESS * 3.0 * MOST
    assert seen[0] == pytest.approx(alone)


def test_a_folder_of_images_is_tried_with_its_files_decoded_on_the_device() -> None:
    facts = starved(machine_=machine(), loader_={"dataset": "ImageFolder"})
    decoded = one(facts, "Decode and transform the image files on the H100")
    assert decoded.axis == "device_decode" and "numerics" in (decoded.caution or "")
    assert not any("Move the transforms" in title for title in titles(facts))
    (tried,) = [c for c in prescribe(facts, find(facts)).candidates if c.settings.device_decode]
    assert tried.in_code and tried.live
    own = starved(machine_=machine(), loader_={"dataset": "DatasetFolder"})  # reads its own way
    assert not any("the image files" in title for title in titles(own))


def test_files_are_decoded_once_or_packed_as_the_cpu_says() -> None:
    photos = {"stores": (), "normalisation": None, "shapes_vary": False}
    busy = starved(loader_=photos, workers_={"lines": (DECODING,), "cpu_share": 0.95})
    decoded = one(busy, "Decode once and keep the pixels in one file")
    # 70 of 100 stack samples of fetching: up to 78.76 % of it (Clopper and Pearson's table), 7 ms.
    assert decoded.bound_ms == pytest.approx(5.513 * MOST, rel=1e-3)
    assert "70 % (70 of 100 stack samples of fetching) of making a batch is opening" in str(
        decoded.evidence
    )
    assert "take 44.9 MiB" in str(decoded.evidence)  # bytes, not the batch's floats
    waiting = starved(loader_=photos, workers_={"lines": (DECODING,), "cpu_share": 0.2})
    packed = one(waiting, "Pack the samples into a few large files")
    assert "the CPU is busy only 20 %" in str(packed.evidence)
    few = replace(DECODING, n_stack_samples=5, of_stack_samples=6, leaves=())
    assert not any("file" in t for t in titles(starved(workers_={"lines": (few,)})))


@pytest.mark.parametrize(
    "facts",
    [
        lambda: with_exposed(),
        lambda: starved(loader_={"kind": "foreign"}),
        lambda: starved(workers_={"batch_ms": 0.2, "fetch_ms": 0.19}),
        lambda: replace(starved(), workers=None),
        lambda: replace(starved(), loaders=()),
    ],
    ids=[
        "healthy",
        "no loader of torch",
        "batches cost nothing",
        "nothing recorded",
        "a trace alone",
    ],
)
def test_there_are_no_routes_where_batches_are_not_the_matter(facts: Callable[[], Facts]) -> None:
    assert routes(facts()) == ()


def test_a_stream_can_be_scaled_by_the_batch_but_not_kept() -> None:
    facts = starved(loader_={"kind": "iterable", "n_samples": None})
    assert titles(facts) == ["ToTensor and Normalize for the whole batch, not for each sample"]


def test_rows_of_a_tensor_need_no_cache_and_are_one_tensor_already() -> None:
    rows = starved(
        loader_={"dataset": "TensorDataset", "stores": ()},
        workers_={"fetch_ms": 1.0, "collate_ms": 6.0, "transforms": ()},
    )
    assert titles(rows) == []
    advice = prescribe(rows, find(rows)).advice
    assert any("Do per-sample work once" in a.title or "Slice" in a.title for a in advice)


@pytest.mark.parametrize(
    ("n_bytes", "collate_ms", "advised"),
    [(64 * 2**20, 6.0, False), (64 * 2**20, 0.6, True), (64 * 784 * 4, 6.0, True)],
    ids=["large, all of it copying", "large, made dearly", "small, all of it calls"],
)
def test_slices_of_large_batches_still_copy_them(
    n_bytes: int, collate_ms: float, advised: bool
) -> None:
    """8 ms a step are lost to the loader, and what collating copied is copied in the loop then."""
    batch = (TensorRecord(path="[0]", shape=(64, 1, 28, 28), dtype="float32", n_bytes=n_bytes),)
    facts = starved(
        n_workers=1,
        loader_={"batch": batch, "stores": (), "n_samples": 640},
        workers_={"fetch_ms": 7.0 - collate_ms, "collate_ms": collate_ms, "transforms": ()},
    )
    assert any("slice batches" in title for title in titles(facts)) == advised


def test_tensors_in_memory_are_not_to_be_kept_in_memory_once_more() -> None:
    assert any("in memory as they" in title for title in titles(starved()))
    assert not any("in memory" in x for x in titles(starved(loader_={"dataset": "TensorDataset"})))


def test_each_rank_would_keep_its_own_samples() -> None:
    """180 MiB fit into two fifths of 600 MB once, and not twice."""
    for ranks, fits in ((1, True), (2, False)):
        beside = machine(memory_available_bytes=600_000_000, n_local_ranks=ranks, device_name=None)
        result = prescribe(facts := starved(machine_=beside), find(facts))
        assert any(c.settings.cache for c in result.candidates) == fits
        reasons = {w.setting: w.reason for w in result.not_advised}
        assert ("in each of 2 ranks" in reasons.get("cache", "")) != fits
    plenty = starved(machine_=machine(n_local_ranks=2, device_name=None))
    assert "2 times (each rank) 180 MiB of" in str(one(plenty, "first made").evidence)
