"""`device_decode`: JPEG files travel as they are, and are decoded and transformed on the device.

For datasets that list their files, as torchvision's ImageFolder does. The transforms are the
dataset's own: torchvision's take tensors too, and draw the same crops of the same draws. Pixels
differ by what decoders and resizing differ; how much is measured before anything is tried.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, default_collate

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.own_copy import looked_at
from loaderdoctor.instrument.dataset.transforms import transform_name

# Files that are decoded both ways; the mean difference of a picture, as a part of the range of its
# values. libjpeg-turbo against nvJPEG is about 0.003, resizing a picture in place of a tensor 0.01.
N_COMPARED = 8
MAX_MEAN_DIFFERENCE = 0.03
_JPEG = b"\xff\xd8\xff"
_SUFFIXES = (".jpg", ".jpeg")
_LOADERS = ("default_loader", "pil_loader")  # of torchvision.datasets.folder: RGB, as decoded here
# Without a draw, and the same for each picture of a batch.
_CONVERSIONS = frozenset({"ToTensor", "ConvertImageDtype", "ToDtype", "ConvertDtype", "Normalize"})
_SLOTS = ("samples", "transform", "target_transform", "loader")
Decode = Callable[[list[Tensor]], list[Tensor]]  # bytes of files -> pictures (3, height, width)


class EncodedFiles(Dataset[Any]):
    """The files of a dataset as tensors of bytes, with their labels."""

    def __init__(self, base: Any, chosen: Any = None) -> None:
        self._base, self._chosen = base, chosen

    def __len__(self) -> int:
        return len(self._base.samples if self._chosen is None else self._chosen)

    def are_named_jpeg(self) -> bool:
        """Whether all files are, by their names: to open each would take too long."""
        listed = self._base.samples
        chosen = listed if self._chosen is None else (listed[i] for i in self._chosen)
        return all(str(path).lower().endswith(_SUFFIXES) for path, _ in chosen)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        at = index if self._chosen is None else self._chosen[index]
        path, label = self._base.samples[at]
        change = self._base.target_transform
        with open(path, "rb") as file:  # noqa: PTH123  # as the dataset names it, str or Path
            read = bytearray(file.read())
        return torch.frombuffer(read, dtype=torch.uint8), label if change is None else change(label)


def joined(samples: list[tuple[Tensor, Any]]) -> tuple[Tensor, list[int], Any]:
    """The files of a batch as one tensor, where each ends, and the labels. Runs in the workers."""
    files = [file for file, _ in samples]
    return torch.cat(files), [len(file) for file in files], default_collate([y for _, y in samples])


@dataclass(frozen=True, slots=True)
class OnTensors:
    """What makes the batch of it: `decode` where the loop computes, then the dataset's own way."""

    each: Any  # what is done to one picture
    whole: Any  # and, from there on, to all of them at once: the same for each
    decode: Decode

    def __call__(self, batch: tuple[Tensor, list[int], Any]) -> list[Any]:
        """The batch as its loader collates it, its pictures on the device."""
        data, lengths, labels = batch
        pictures = self.decode(list(torch.split(data, lengths)))
        return [self.whole(torch.stack([self.each(picture) for picture in pictures])), labels]


def decoding_on(device: torch.device) -> Decode:
    """Torchvision's decoder: nvJPEG where that is a GPU of NVIDIA. Raises TrialRefused."""
    try:
        from torchvision import io
    except ImportError:
        raise TrialRefused("torchvision can't be imported") from None

    def decode(files: list[Tensor]) -> list[Tensor]:
        made: list[Tensor] = io.decode_jpeg(files, io.ImageReadMode.RGB, device=device)
        return made

    return decode


def encoded(
    dataset: Any, collate: Any, decode: Decode, *, apart: bool
) -> tuple[EncodedFiles, OnTensors, float]:
    """The files, what makes batches of them, and by how much of their range these differ at most.

    `apart`: as of `looked_at`. Raises TrialRefused where they are no JPEG files that a list names,
    the transforms take no tensors, or too much differs.
    """
    base, chosen = dataset, None
    if type(dataset) is Subset:
        base, chosen = dataset.dataset, [int(i) for i in dataset.indices]
    if not all(hasattr(base, name) for name in _SLOTS):
        raise TrialRefused(
            f"{type(base).__name__} is no ImageFolder: which file a sample is made of is not known"
        )
    if collate is not default_collate or getattr(base.loader, "__name__", "") not in _LOADERS:
        raise TrialRefused("the script reads its files, or collates, in a way of its own")
    files = EncodedFiles(base, chosen)
    finish = OnTensors(*_on_tensors(base.transform), decode)
    with looked_at(dataset, apart=apart) as made:
        return files, finish, _difference(made, files, finish)


def _on_tensors(transform: Any) -> tuple[Any, Any]:
    """The Compose with a conversion of tensors in the place of one of pictures, in two parts.

    Its last conversions, which are the same for all pictures, are done once for a batch.
    """
    steps = getattr(transform, "transforms", None)
    if not isinstance(steps, list):
        raise TrialRefused("the dataset's transform is no Compose")
    from torchvision.transforms import ConvertImageDtype

    kept = [x for x in steps if transform_name(x) not in ("PILToTensor", "ToImage")]
    n = len(kept)
    while n and transform_name(kept[n - 1]) in _CONVERSIONS:
        n -= 1
    to_floats = ConvertImageDtype(torch.float32)
    made = [to_floats if transform_name(x) == "ToTensor" else x for x in kept]
    return _compose(transform, made[:n]), _compose(transform, made[n:])


def _compose(like: Any, steps: list[Any]) -> Any:
    made = copy.copy(like)
    vars(made)["transforms"] = steps
    return made if steps else _as_it_is


def _as_it_is(picture: Tensor) -> Tensor:
    return picture


def _difference(dataset: Any, files: EncodedFiles, finish: OnTensors) -> float:
    """The largest mean difference of a picture, as a part of its range."""
    n, worst = len(files), 0.0
    if not n:
        raise TrialRefused("the dataset is empty")
    if not files.are_named_jpeg():
        raise TrialRefused("its files are no JPEG files, or not all of them")
    for k in sorted({i * n // N_COMPARED for i in range(N_COMPARED)}):
        file, label = files[k]
        if bytes(file[:3].tolist()) != _JPEG:
            raise TrialRefused("its files are no JPEG files, or not all of them")
        _seed(k)
        own = dataset[k]
        _seed(k)
        try:
            (picture,), (named,) = finish(joined([(file, label)]))
        except TrialRefused:
            raise
        except Exception as error:  # transforms that want a picture of PIL, or a decoder's refusal
            raise TrialRefused(
                f"its files can't be decoded and transformed there: {type(error).__name__}: {error}"
            ) from error
        if not (isinstance(own, tuple) and len(own) == 2 and isinstance(own[0], Tensor)):
            raise TrialRefused("its samples are no pairs of a tensor and a label")
        if (own[0].shape, own[0].dtype) != (picture.shape, picture.dtype) or own[1] != named:
            raise TrialRefused("its samples come out in another shape or type")
        expected, range_ = own[0].double(), float(own[0].double().max() - own[0].double().min())
        mean = float((picture.cpu().double() - expected).abs().mean())
        worst = max(worst, mean / range_ if range_ else mean)
    if worst > MAX_MEAN_DIFFERENCE:
        raise TrialRefused(
            f"pictures differ by {worst:.1%} of their range on average, more than "
            f"{MAX_MEAN_DIFFERENCE:.0%}"
        )
    return worst


def _seed(k: int) -> None:
    """Both ways draw the same; the caller puts the generators back."""
    random.seed(k)
    np.random.seed(k)  # noqa: NPY002  # the generator that transforms draw from
    torch.default_generator.manual_seed(k)
