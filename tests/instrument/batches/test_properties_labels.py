"""Labels of the first batches: one in each tells of data in its stored order."""

from __future__ import annotations

from typing import Any

import torch

from loaderdoctor.instrument.batches.properties import Labels


def seen(*batches: Any) -> tuple[str, int, int, int] | None:
    labels = Labels()
    for batch in batches:
        labels.add(batch)
    found = labels.record()
    if found is None:
        return None
    return found.path, found.n_batches, found.n_of_one_label, found.n_labels


IMAGES = torch.zeros(16, 3, 4, 4)


def test_labels_are_the_second_of_a_pair_or_named_so() -> None:
    one, mixed = torch.full((16,), 3), torch.arange(16)
    assert seen((IMAGES, one), (IMAGES, one + 1), (IMAGES, mixed)) == ("[1]", 3, 2, 2)
    named = {"pixels": IMAGES, "size": one, "labels": mixed}
    assert seen(named) == ("['labels']", 1, 0, 0)


def test_what_is_no_label_is_not_taken_for_one() -> None:
    assert seen((IMAGES, torch.zeros(16))) is None  # a regression
    assert seen((IMAGES, torch.zeros(16, 8, dtype=torch.int64))) is None  # tokens
    assert seen((IMAGES, torch.zeros(4, dtype=torch.int64))) is None  # too few samples
    assert seen({"pixels": IMAGES, "size": torch.full((16,), 224), "id": torch.arange(16)}) is None
    assert seen(IMAGES) is None
    assert seen("words") is None


def test_lengths_that_inputs_are_padded_to_are_no_labels() -> None:
    """Of batches by length each holds one length, which is a dimension of its inputs."""
    lengths = (40, 60, 80, 100)
    pairs = [(torch.zeros(16, n), torch.full((16,), n)) for n in lengths]
    assert seen(*pairs) is None
    below = [(torch.zeros(16, n), torch.arange(n - 15, n + 1)) for n in lengths]
    assert seen(*below) is None
    labels = [(torch.zeros(16, n), torch.full((16,), k)) for k, n in enumerate(lengths)]
    assert seen(*labels) == ("[1]", 4, 4, 4)
    # One label that is a dimension by chance does not make lengths of the others.
    assert seen(*labels, (torch.zeros(16, 7), torch.full((16,), 7))) == ("[1]", 5, 5, 5)
