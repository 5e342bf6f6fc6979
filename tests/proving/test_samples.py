"""What became of the samples of an epoch, from digests made up."""

from __future__ import annotations

import numpy as np
import pytest

from loaderdoctor.proving.samples import Digests, Samples, samples


def digests(*numbers: int) -> Digests:
    return np.array(numbers, dtype=np.uint64)


EPOCH = digests(*range(100), 7)  # one sample is in it twice
SHUFFLED = EPOCH[np.random.default_rng(0).permutation(len(EPOCH))]


def seen(*changed: Digests, first: Digests | None = None, alike: bool = True) -> Samples:
    return samples([EPOCH, SHUFFLED], list(changed), first, alike=alike)


def test_the_order_of_samples_is_no_difference_and_is_told() -> None:
    assert seen(SHUFFLED).words == "same samples in another order"
    assert seen(EPOCH).words == "same samples in the same order"
    assert seen(SHUFFLED).same is True


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (EPOCH[5:], "samples lost: 5 of 101"),
        (EPOCH[:-1], "samples lost: 1 of 101"),  # one of the two that are alike
        (np.concatenate([EPOCH, EPOCH[:3]]), "samples doubled: 3 of 101"),
        (
            np.concatenate([EPOCH[3:], digests(900, 901)]),
            "samples lost: 1 of 101; 2 of 100 samples are made otherwise",
        ),
    ],
)
def test_what_is_lost_doubled_or_other_is_counted(changed: Digests, words: str) -> None:
    found = seen(changed)
    assert found.same is False
    assert found.words == words


def test_an_epoch_that_ends_elsewhere_is_told_by_its_first_samples() -> None:
    """What is fetched a batch ahead ends its pass a batch early."""
    assert seen(SHUFFLED[:-4], first=SHUFFLED).same is True
    assert seen(first=SHUFFLED).same is True
    lost = seen(first=np.concatenate([EPOCH[4:], EPOCH[4:8]]))
    assert (lost.same, lost.n_lost, lost.n_doubled) == (False, 4, 4)


def test_what_fills_no_whole_batch_is_left_out_by_the_script_itself() -> None:
    """drop_last over a shuffled order: two epochs of it differ by three samples."""
    found = samples([EPOCH[:-3], EPOCH[3:]], [EPOCH[1:-2]], None, alike=True)
    assert found.same is True
    assert "but for 1 of 98, as two epochs of the script itself differ" in found.words
    more = samples([EPOCH[:-3], EPOCH[3:]], [EPOCH[10:-3]], None, alike=True)
    assert more.same is False


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (samples([], [EPOCH], None, alike=True), "no whole epoch of the script"),
        (seen(), "no whole epoch of the changed form"),
        (samples([EPOCH, EPOCH + np.uint64(500)], [EPOCH], None, alike=True), "differ from epoch"),
        (seen(EPOCH[5:], alike=False), "other lengths"),
        (samples([EPOCH], [EPOCH[5:]], None, alike=True), "one epoch of the script"),
        (seen(EPOCH + np.uint64(1000)), "101 of 101 samples are made otherwise, as many as before"),
    ],
)
def test_what_cannot_be_told_is_said_so(found: Samples, why: str) -> None:
    assert found.same is None
    assert why in found.words


def test_padded_rows_that_are_all_there_are_the_same() -> None:
    assert seen(SHUFFLED, alike=False).same is True


def test_samples_that_draw_are_not_called_the_same_by_draws_that_were_fixed() -> None:
    """Augmentation that a cache keeps as first drawn looked like the script's."""
    found = samples([EPOCH, SHUFFLED], [SHUFFLED], None, alike=True, drawn=True)
    assert found.same is None
    assert found.words == (
        "same samples in another order; their random draws were fixed, so whether each epoch draws "
        "anew is not known"
    )
    lost = samples([EPOCH, SHUFFLED], [EPOCH[5:]], None, alike=True, drawn=True)
    assert lost.same is False and lost.words == "samples lost: 5 of 101"
    others = samples([EPOCH, SHUFFLED], [EPOCH + np.uint64(1000)], None, alike=True, drawn=True)
    assert "made otherwise, as many as before" in others.words
