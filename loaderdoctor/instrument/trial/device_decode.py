"""`device_decode` in a trial: the dataset's files in its place, and what makes batches of them."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.encoded import (
    EncodedFiles,
    OnTensors,
    decoding_on,
    encoded,
    joined,
)
from loaderdoctor.instrument.trial.data_axes import Note, TrialData

# What was made of a loader's dataset, compared once, by the id of the dataset it was made of.
_made: weakref.WeakKeyDictionary[
    DataLoader[Any], dict[int, tuple[Any, EncodedFiles, OnTensors]]
] = weakref.WeakKeyDictionary()


def files_of(
    loader: DataLoader[Any], data: TrialData, device: torch.device, note: Note
) -> tuple[TrialData, OnTensors]:
    """The data as files, and what decodes its batches on the device. Raises TrialRefused.

    `note` is told by how much pictures differ.
    """
    if loader.batch_sampler is None:
        raise TrialRefused("the loader makes no batches of samples (batch_size=None)")
    made = _made.setdefault(loader, {})
    if id(data.dataset) not in made:
        files, finish, difference = encoded(
            data.dataset, data.collate, decoding_on(device), apart=loader.num_workers > 0
        )
        note(
            "device-decode-differs",
            f"device_decode: pictures of the same draws differ by up to {difference:.2%} of their "
            "range on average from those that the dataset makes, and their random draws are made "
            "in the training process: training is the same only as far as that goes.",
        )
        made[id(data.dataset)] = data.dataset, files, finish  # kept, so that its id stays its own
    _, files, finish = made[id(data.dataset)]
    return replace(data, dataset=files, collate=joined), finish
