"""What a change brought and what it kept, from runs made up with known times and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from loaderdoctor.instrument.wire.channel import CheckedRun, CheckedStep
from loaderdoctor.proving import (
    MAX_NOISE,
    Promise,
    Proof,
    agree,
    kept,
    proof,
)
from loaderdoctor.proving.record import headline, markdown, record, rows
from loaderdoctor.proving.samples import Samples
from loaderdoctor.proving.speed import TOLERANCE, step_ms

N = 30
FALLING = tuple(1.0 / (i + 1) for i in range(N))


def run(
    ms: float,
    *,
    losses: Sequence[float] | None = FALLING,
    inputs: str | None = "batch",
    n: int = 100,
) -> CheckedRun:
    """Steps of `ms` each; the inputs of step i are called `inputs`i."""
    steps = tuple(
        CheckedStep(
            inputs=f"{inputs}{i}" if inputs else None,
            loss=losses[i] if losses is not None else None,
        )
        for i in range(N)
    )
    ns = tuple(round(i * ms * 1e6) for i in range(n + 1))
    return CheckedRun(steps=steps, step_ns=ns, ended="stopped")


def proved(before: Sequence[float], after: Sequence[float], **changed: object) -> Proof:
    turns = [
        (run(a), run(b, **changed))  # type: ignore[arg-type]
        for a, b in zip(before, after, strict=True)
    ]
    found = proof(turns)
    assert found is not None
    return found


def test_a_step_of_a_second_optimizer_without_inputs_is_no_other_batch() -> None:
    """`opt_a.step(); opt_b.step()`: the model was called once for both."""

    def of_two(inputs: str) -> CheckedRun:
        one = run(10.0, inputs=inputs)
        steps = tuple(
            msgspec.structs.replace(step, inputs=None if i % 2 else step.inputs)
            for i, step in enumerate(one.steps)
        )
        return msgspec.structs.replace(one, steps=steps)

    same, other = (proof([(of_two("batch"), of_two(name))] * 2) for name in ("batch", "other"))
    assert same is not None and same.same_batches and same.words == "same batches, same losses"
    assert other is not None and other.same_batches is False
    unseen = proof([(run(10.0, inputs=None), run(10.0, inputs=None))] * 2)
    assert unseen is not None and unseen.same_batches is None


def test_the_ratio_is_of_turns_so_a_drift_of_the_machine_cancels() -> None:
    found = proved([10.0, 20.0, 40.0], [5.0, 10.0, 20.0])
    assert found.speed_up.value == pytest.approx(2.0)
    assert found.speed_up.low == pytest.approx(2.0)
    assert found.faster() is True
    assert headline(found) == "2.0× [2.00, 2.00] as fast."


def test_noise_leaves_it_open_and_slower_is_told() -> None:
    open_ = proved([10.0, 12.0, 9.0], [10.5, 9.0, 11.0])
    assert open_.faster() is None
    assert headline(open_).startswith("No difference beyond the noise")
    slower = proved([10.0, 10.0, 10.0], [20.0, 20.1, 19.9])
    assert slower.faster() is False
    assert headline(slower).startswith("Slower: 0.50×")


def test_one_turn_has_no_interval() -> None:
    found = proved([10.0], [5.0])
    assert not found.speed_up.bounded
    assert found.faster() is None
    assert found.own is None
    assert "too few turns for an interval" in headline(found)


def test_a_large_gain_in_turns_that_differ_is_told_by_what_is_certain() -> None:
    """Of a mean of three turns between 10 and 50 nothing is known; of any two runs, that."""
    found = proved([18.0, 60.0, 30.0], [1.2, 1.2, 1.5])
    assert found.speed_up.high > 3 * found.speed_up.value
    assert found.faster() is True
    assert headline(found) == "At least 12× as fast."
    assert dict(rows(found))["speed"] == "at least 12× in any of 3 turns, 25× on average"
    for promise, said in (
        (Promise(times=10.0), "as promised"),
        (Promise(times=30.0, at_best=True), "as promised"),
        (Promise(times=9.0, at_best=True), "not as promised"),
        (Promise(times=60.0), "too noisy to tell"),
    ):
        assert f"At least 12× as fast; {said}" in headline(found, promise=promise)
    one = record(found, changes="x", promise=Promise(times=10.0))
    assert one.sentence.startswith("x: promised 10×, got at least 12×;")


def test_a_large_loss_in_turns_that_differ_is_one() -> None:
    found = proved([1.2, 1.2, 1.5], [18.0, 60.0, 30.0])
    assert headline(found) == "Slower: at most 0.08× as fast."
    assert found.keeps(Promise(times=2.0)) is False


def test_turns_that_differ_as_much_as_the_forms_tell_nothing_certain() -> None:
    found = proved([18.0, 60.0, 30.0], [10.0, 6.0, 18.0])
    assert "(turns differ too much for an interval)" in headline(found)
    assert dict(rows(found))["speed"].endswith("for an interval), 3 turns")


def test_a_run_that_is_too_short_to_time_proves_nothing() -> None:
    assert step_ms(run(10.0, n=0)) is None
    assert proof([(run(10.0), run(5.0, n=0))]) is None
    assert proof([]) is None


@pytest.mark.parametrize(
    ("promise", "is_kept"),
    [
        (Promise(times=2.0), True),
        (Promise(times=2.25), True),
        (Promise(times=1.5), True),
        (Promise(times=3.0), False),
        (Promise(times=3.0, low=2.2, high=4.5), True),  # its own interval reaches what was got
        (Promise(times=3.0, low=2.6, high=3.6), False),
        (Promise(times=3.0, at_best=True), True),
        (Promise(times=1.2, low=0.8, high=1.7), True),  # "may gain less or nothing": it helped
        (Promise(times=2.2, at_best=True), True),
        (Promise(times=1.5, at_best=True), False),  # "at best" was wrong
        (None, None),
    ],
)
def test_a_promise_is_kept_within_the_interval_or_its_tolerance_or_exceeded(
    promise: Promise | None, is_kept: bool | None
) -> None:
    found = proved([10.0, 10.0, 10.0], [5.0, 5.0, 5.0])
    assert found.keeps(promise) is is_kept
    if promise is not None:
        assert ("not as " in headline(found, promise=promise)) is not is_kept


def test_about_as_fast_is_kept_by_what_gains_nothing_and_broken_by_what_is_slower() -> None:
    promise = Promise(times=1.2, low=0.7, high=2.0)
    assert not promise.is_gain
    same = proved([10.0, 10.0, 10.0], [9.7, 10.0, 10.3])
    assert same.keeps(promise) is True
    assert same.keeps(Promise(times=1.2, low=1.1, high=1.3)) is False  # a gain would not be
    said = headline(same, promise=promise)
    assert said.endswith("; as expected (1.20× [0.70, 2.00], may gain less or nothing).")
    slower = proved([10.0, 10.0, 10.0], [13.0, 13.1, 12.9])
    assert slower.keeps(promise) is False
    assert "not as expected" in headline(slower, promise=promise)
    surely = proved([8.71, 8.76, 8.81], [10.0, 10.0, 10.0])  # by less than the tolerance
    assert surely.faster() is False and surely.speed_up.value > 1 - TOLERANCE
    assert surely.keeps(Promise(times=1.2, low=0.95, high=1.5)) is False
    perhaps = proved([8.7, 9.5, 8.6], [9.0, 9.0, 9.8])
    assert perhaps.faster() is None and perhaps.speed_up.value < 1.0
    assert perhaps.keeps(Promise(times=1.2, low=0.95, high=1.5)) is True
    kept_record = record(same, changes="x", promise=promise)
    assert (kept_record.promised_gain, kept_record.promised_between) == (False, (0.7, 2.0))
    assert kept_record.sentence.startswith("x: expected 1.20× or no gain, got 1.00×")


def test_a_bound_is_neither_kept_nor_broken_by_what_shows_no_gain() -> None:
    bound = Promise(times=5.0, at_best=True)
    found = proved([10.0, 10.0, 10.0], [9.0, 10.0, 11.0])
    assert found.keeps(bound) is None
    said = "; whether it gains anything can't be told (promised: at best 5.0×)."
    assert headline(found, promise=bound).endswith(said)
    slower = proved([10.0, 10.0, 10.0], [12.0, 12.1, 11.9])
    assert slower.keeps(bound) is None
    said = "; it gains nothing (promised: at best 5.0×)."
    assert headline(slower, promise=bound).endswith(said)


def test_an_interval_that_decides_nothing_breaks_no_promise() -> None:
    """1.29 [0.50, 3.34] was called not as promised: at best 3.8×."""
    found = proved([10.0, 10.0, 10.0], [11.36, 7.75, 5.29])
    assert found.faster() is None and 3.0 < found.speed_up.high < 3.8
    for promise in (Promise(times=3.8, at_best=True), Promise(times=3.8, low=3.0, high=4.6)):
        assert found.keeps(promise) is None
        assert "not as " not in headline(found, promise=promise)
        assert ", too noisy to tell" in record(found, changes="x", promise=promise).sentence
    # Whatever the interval, so little was measured as a gain that is surely more than this.
    assert found.keeps(Promise(times=9.0, low=8.0, high=9.9)) is False


def test_no_gain_keeps_no_promise_of_one_however_wide_it_was() -> None:
    """1.01 [0.92, 1.11] was called as promised: 1.27, by an interval that began at 1.09."""
    found = proved([10.0, 10.3, 9.7], [9.6, 10.2, 10.1])
    assert found.faster() is None and found.speed_up.high < 1.27
    assert found.keeps(Promise(times=1.27, low=1.01, high=1.5)) is False
    small = Promise(times=1.02, low=1.01, high=1.5)
    assert found.keeps(small) is not False
    assert "; too noisy to rule out what was promised (1.02×" in headline(found, promise=small)


def test_same_losses_of_the_same_inputs() -> None:
    found = proved([10.0, 10.0], [5.0, 5.0])
    assert found.numerics == "same"
    assert found.words == "same batches, same losses"


def test_losses_that_differ_by_the_order_of_sums_are_the_same_within_that() -> None:
    near = tuple(1.0 / (i + 1) * (1 + 2e-5) for i in range(N))
    found = proved([10.0, 10.0], [5.0, 5.0], losses=near, inputs="other")
    assert found.numerics == "same-within"
    assert found.words == "other batches, losses the same within 2e-05"


def test_a_change_of_what_is_trained_is_told_with_the_step() -> None:
    other = (1.0, 0.5, *(1.0 for _ in range(N - 2)))
    found = proved([10.0, 10.0], [5.0, 5.0], losses=other)
    assert found.numerics == "changed"
    assert found.words.endswith("changes numerics: losses differ from step 2 on")
    said = found.beside("numerics change")
    assert said == f"{found.words}, as the advice says (numerics change)"
    assert found.beside(None) == found.words
    assert ("training", said) in rows(found, expected="numerics change")
    same = proved([10.0, 10.0], [5.0, 5.0])
    assert same.beside("numerics change") == same.words


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        (None, False),
        ("numerics change", True),
        ("numerics change; the model has fewer parameters", True),
        ("batches come in another order", None),
        ("numerics change; batches have another size", None),
        ("the stream is dealt to the workers: the same samples, in other batches", None),
    ],
)
def test_other_losses_are_as_advised_only_of_what_leaves_the_samples(
    expected: str | None, holds: bool | None
) -> None:
    found = proved([10.0, 10.0], [5.0, 5.0], losses=[1.0] * N, inputs="other")
    assert found.numerics == "changed"
    assert found.as_expected(expected) is holds
    assert record(found, changes="", expected=expected).as_expected is holds
    assert ("not checked" in found.beside(expected)) is (holds is None)
    same = proved([10.0, 10.0], [5.0, 5.0])
    assert same.as_expected(expected) is True


def test_other_batches_are_as_advised_where_no_sample_is_lost() -> None:
    expected = "batches come in another order"
    for lost, holds in ((0, True), (3, False), (None, None)):
        why = "no whole epoch" if lost is None else None
        seen = Samples(n=400, n_changed=400 - (lost or 0), n_lost=lost or 0, why_not=why)
        found = proved([10.0, 10.0], [5.0, 5.0], losses=[1.0] * N, inputs="other")
        assert found.other_batches
        found = replace(found, samples=seen)
        assert found.as_expected(expected) is holds
        assert found.as_expected(None) is False
        assert seen.words in found.beside(expected) and seen.words in found.beside(None)
        kept_so = record(found, changes="", expected=expected)
        assert kept_so.as_expected is holds
        assert (kept_so.samples or {}).get("n_lost") == lost
        if holds:
            assert found.beside(None) == (
                "other batches, same samples in another order: losses differ from step 1 on"
            )
    assert not proved([10.0, 10.0], [5.0, 5.0], losses=[1.0] * N).other_batches


@pytest.mark.parametrize(
    "expected",
    [
        "numerics change",
        "the model has fewer parameters",
        "pixels differ a little, and random draws are made in the training process",
        "batches come in another order",
        None,
    ],
)
@pytest.mark.parametrize(
    ("losses", "own", "numerics"),
    [
        ([1.0] * N, FALLING, "changed"),
        (FALLING, FALLING, "same"),
        ([1.0] * N, [2.0] * N, "unknown"),  # losses that differ by themselves
    ],
)
def test_lost_samples_are_never_as_expected_whatever_the_losses_say(
    expected: str | None, losses: Sequence[float], own: Sequence[float], numerics: str
) -> None:
    turns = [(run(10.0, losses=x), run(5.0, losses=losses, inputs="other")) for x in (FALLING, own)]
    found = proof(turns)
    assert found is not None and found.numerics == numerics and found.other_batches
    lost = replace(found, samples=Samples(n=400, n_changed=380, n_lost=20))
    assert lost.as_expected(expected) is False
    assert "samples lost: 20 of 400" in lost.beside(expected)
    assert ", as the advice says" not in lost.beside(expected)
    assert ("not as the advice says" in lost.beside(expected)) is (expected is not None)
    assert record(lost, changes="", expected=expected).as_expected is False
    whole = replace(found, samples=Samples(n=400, n_changed=400))
    by_losses = whole.as_expected(expected)
    assert by_losses is {"same": True, "unknown": None, "changed": expected is not None}[numerics]


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_no_advice_expects_losses_that_are_no_numbers(lost: float) -> None:
    broken = [1.0] * (N - 1) + [lost]
    found = proved([10.0, 10.0], [5.0, 5.0], losses=broken)
    for expected in ("numerics change", "batches come in another order", None):
        assert found.as_expected(expected) is False
        assert "infinite or no numbers" in found.beside(expected)
    turns = [(run(10.0, losses=x), run(5.0, losses=broken)) for x in (FALLING, broken)]
    by_itself = proof(turns)  # the script as it is does so now and then
    assert by_itself is not None
    assert by_itself.numerics == "unknown" and by_itself.as_expected("numerics change") is None


def redrawn(fixed: tuple[CheckedRun, CheckedRun]) -> Proof:
    other = tuple(2.0 / (i + 1) for i in range(N))
    turns = [(run(10.0), run(5.0, losses=other, inputs="other")) for _ in range(2)]
    found = proof(turns, fixed=fixed)
    assert found is not None
    assert not agree(found.kept)
    return found


def test_other_random_draws_are_told_from_other_numerics() -> None:
    found = redrawn((run(1.0), run(1.0)))
    assert found.numerics == "redrawn"
    assert found.words == "other random draws; with these fixed, same batches and same losses"
    assert ("model inputs", "30 of the first 30 steps identical") in rows(found)
    still = redrawn((run(1.0), run(1.0, inputs="other")))
    assert still.numerics == "changed"


def test_draws_that_cannot_be_fixed_leave_it_open() -> None:
    beside = msgspec.structs.replace(run(1.0, inputs="other"), draws_fixed=False)
    found = redrawn((run(1.0), beside))
    assert found.numerics == "unknown"
    assert "in a thread beside the loop" in found.words


def test_batches_that_came_again_leave_open_whether_draws_are_kept() -> None:
    again = msgspec.structs.replace(run(1.0), draws_repeated=True, epoch_ended=True)
    found = redrawn((run(1.0), again))
    assert found.numerics == "unknown"
    assert "whether each pass draws anew is not known" in found.words
    other = msgspec.structs.replace(run(1.0, inputs="other"), draws_repeated=True)
    assert redrawn((run(1.0), other)).numerics == "changed"


@pytest.mark.parametrize(
    ("ended", "told"), [((False, False), True), ((True, True), False), ((False, None), False)]
)
def test_a_verdict_over_less_than_an_epoch_says_so(
    ended: tuple[bool | None, bool | None], told: bool
) -> None:
    a, b = (msgspec.structs.replace(run(1.0), epoch_ended=x) for x in ended)
    found = redrawn((a, b))
    assert found.numerics == "redrawn"
    assert ("no epoch ended among them" in found.words) is told


def test_a_script_that_differs_from_itself_proves_nothing_of_its_losses() -> None:
    def noisy(seed: int) -> tuple[float, ...]:
        return tuple(1.0 + seed * MAX_NOISE * 5 + i for i in range(N))

    turns = [(run(10.0, losses=noisy(0)), run(5.0, losses=noisy(1)))]
    turns.append((run(10.0, losses=noisy(2)), run(5.0, losses=noisy(3))))
    found = proof(turns)
    assert found is not None
    assert found.numerics == "unknown" and found.as_expected(None) is None
    nothing = "; of losses nothing is known: two runs of the script as it is differ in them"
    assert found.words == f"same batches{nothing}"
    promise = Promise(times=2.1, low=1.8, high=2.4)
    assert found.keeps(promise) is True  # the speed is told beside it
    said = headline(found, promise=promise)
    assert "; as promised (" in said
    assert said.endswith(
        " Whether training stays the same can't be told: the script differs from itself."
    )
    # Batches can be compared all the same.
    fixed = (run(1.0, losses=noisy(4)), run(1.0, losses=noisy(5)))
    turns = [(a, run(5.0, losses=noisy(6), inputs="other")) for a, _ in turns]
    drawn = proof(turns, fixed=fixed)
    assert drawn is not None and drawn.numerics == "unknown"
    assert drawn.words == f"other random draws; with these fixed, same batches{nothing}"
    lost = replace(drawn, samples=Samples(n=400, n_changed=380, n_lost=20))
    assert lost.as_expected(None) is False


def test_what_was_not_seen_is_not_said_to_be_the_same() -> None:
    found = proved([10.0, 10.0], [5.0, 5.0], losses=None, inputs=None)
    assert found.same_batches is False or found.same_batches is None
    assert found.numerics == "unknown"
    compared = kept(run(1.0, losses=None, inputs=None), run(1.0, losses=None, inputs=None))
    assert compared.n_same_inputs is None
    assert compared.max_loss_difference is None


def test_losses_that_become_nan_in_both_are_the_same_and_in_one_they_are_not() -> None:
    nan = tuple(math.nan for _ in range(N))
    assert kept(run(1.0, losses=nan), run(1.0, losses=nan)).max_loss_difference == 0.0
    assert kept(run(1.0, losses=nan), run(1.0)).max_loss_difference == math.inf


def test_the_page_for_a_pull_request_holds_every_row() -> None:
    found = proved([10.0, 10.0], [5.0, 5.0])
    page = markdown(
        found, title="train.py", machine="2 CPUs.", command="prove", promise=Promise(times=2.0)
    )
    assert "as promised (2.0×)" in page
    between = headline(found, promise=Promise(times=2.0, low=1.8, high=2.25))
    assert between.endswith("as promised (2.0× [1.80, 2.25]).")
    for name, value in rows(found):
        assert f"| {name} | {value} |" in page
