"""Samples kept as they were first made (`cache`), or sent as their files (`device_decode`).

JPEG files travel as they are, and are decoded and transformed on the device: of datasets that list
their files, as torchvision's ImageFolder does. The transforms are the dataset's own: torchvision's
take tensors too, and draw the same crops of the same draws. Pixels differ by what decoders and
resizing differ; how much is measured before anything is tried.
"""

from __future__ import annotations

import copy
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, default_collate

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.safety import looked_at
from loaderdoctor.instrument.dataset.transforms import transform_name
from loaderdoctor.instrument.system.machine import available_bytes

# Of the free memory; workers that touch what they inherit by fork copy the pages they touch.
MAX_SHARE_OF_FREE_MEMORY = 0.40
FILL_LIMIT_S = 60.0
# Samples after which the time and the bytes of the rest are foretold.
N_PROBED = 16
MIN_PROBED_S = 0.5
# Samples made twice, to see whether they vary. A flip for every second sample goes unseen in 32
# with a chance of 2**-32, an erasing of one in ten in 32 with one of 0.2 %. Slow samples stop it
# earlier, but for the fewest.
N_COMPARED = 32
MIN_COMPARED = 8
COMPARE_LIMIT_S = 0.5


class CachedDataset(Dataset[Any]):
    """The samples of a dataset, made once, all of them, before any worker starts.

    Random augmentation stays as it was drawn. With a `limit_s` it is a trial of what keeping
    samples gains: those made within that time are given in the others' place, and a dataset whose
    samples vary is refused. `copies` gives a copy each time: for what may change its samples, as a
    collate function of the user's own. `batched`: torch asks `__getitems__` of the dataset where
    it has one. `apart`: they are made by a copy, for a dataset that lives in workers. Raises
    TrialRefused where samples don't fit, or making them takes too long.
    """

    def __init__(
        self,
        dataset: Any,
        n: int | None = None,
        *,
        limit_s: float | None = None,
        copies: bool = False,
        batched: bool = False,
        apart: bool = False,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TrialRefused(
                "the dataset is an iterable one: its samples have no numbers to keep"
            )
        self._copies = copies
        self.fill_s = 0.0
        self.n_bytes = 0
        self._n = len(dataset)
        self._samples: list[Any] = []
        n_wanted = self._n if n is None else min(n, self._n)
        with looked_at(dataset, apart=apart) as made:
            # As torch's fetcher asks: one that is None is none.
            several = getattr(made, "__getitems__", None) if batched else None
            if limit_s is not None:
                _refuse_random(made, n_wanted)
            self._fill(lambda i: _sample(made, several, i), n_wanted, limit_s)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        if not -self._n <= index < self._n:
            raise IndexError(index)  # a plain `for` over a dataset ends by it
        sample = self._samples[index % self._n % len(self._samples)]
        return fresh(sample) if self._copies else sample

    @property
    def n_kept(self) -> int:
        """Samples in memory."""
        return len(self._samples)

    def _fill(self, make: Callable[[int], Any], n: int, limit_s: float | None) -> None:
        room = int((available_bytes() or 0) * MAX_SHARE_OF_FREE_MEMORY)
        began = time.monotonic()
        for i in range(n):
            self._samples.append(make(i))
            self.n_bytes += _size(self._samples[-1])
            share = (i + 1) / n
            passed = time.monotonic() - began
            probed = i + 1 >= N_PROBED and passed > MIN_PROBED_S
            enough = limit_s is not None and passed > limit_s and i + 1 >= N_PROBED
            if self.n_bytes > room or ((probed or enough) and self.n_bytes > room * share):
                raise TrialRefused(
                    f"the samples take about {int(self.n_bytes / share)} bytes and {room} may be "
                    "used"
                )
            if enough:
                break
            if limit_s is None and (
                passed > FILL_LIMIT_S or (probed and passed > FILL_LIMIT_S * share)
            ):
                raise TrialRefused(
                    f"making all samples once would take about {passed / share:.0f} s, more than "
                    f"{FILL_LIMIT_S:.0f} s"
                )
        self.fill_s = time.monotonic() - began


def fresh(sample: Any) -> Any:
    """A copy of the sample: whatever is done to it, the sample stays as it was."""
    kind = type(sample)
    if kind in (str, bytes, int, float, bool, type(None)):
        return sample
    if kind is dict:
        return {key: fresh(value) for key, value in sample.items()}
    if kind is list or kind is tuple:
        return kind(map(fresh, sample))
    if kind is Tensor and not sample.requires_grad and not vars(sample):
        return sample.clone()
    return copy.deepcopy(sample)


def _sample(dataset: Any, several: Callable[[list[int]], Any] | None, index: int) -> Any:
    try:
        if several is None:
            return dataset[index]
        made = several([index])
    except (KeyError, TypeError) as error:
        raise TrialRefused(f"samples are not numbered 0, 1, 2, …: {error!r}") from error
    if not isinstance(made, (list, tuple)) or len(made) != 1:
        raise TrialRefused(
            "the dataset's __getitems__ makes whole batches: there is no sample to keep"
        )
    return made[0]


def _refuse_random(dataset: Any, n: int) -> None:
    try:
        index = varying_sample(dataset, n)
    except (KeyError, TypeError) as error:
        raise TrialRefused(f"samples are not numbered 0, 1, 2, …: {error!r}") from error
    if index is not None:
        raise TrialRefused(
            f"sample {index} came out differently when it was made twice: kept in memory, its "
            "random augmentation would be the same in every epoch, which changes training"
        )


def _size(sample: Any) -> int:
    """Bytes of a sample, what Python adds included."""
    if isinstance(sample, Tensor):
        return sample.numel() * sample.element_size() + 200
    if isinstance(sample, np.ndarray):
        return sample.nbytes + 120
    if isinstance(sample, dict):
        return sys.getsizeof(sample) + sum(map(_size, sample.values()))
    if isinstance(sample, (list, tuple)):
        return sys.getsizeof(sample) + sum(map(_size, sample))
    picture = getattr(sample, "tobytes", None)
    return len(picture()) if callable(picture) else sys.getsizeof(sample)


def varying_sample(dataset: Any, n: int) -> int | None:
    """The index of a sample that came out differently when it was made twice; None where none did.

    Looks at a few spread over the first `n`. Raises what the dataset raises.
    """
    began = time.monotonic()
    for done, index in enumerate(dict.fromkeys(k * n // N_COMPARED for k in range(N_COMPARED))):
        if not same(dataset[index], dataset[index]):
            return index
        if done + 1 >= MIN_COMPARED and time.monotonic() - began > COMPARE_LIMIT_S:
            break
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two samples hold the same; objects of unknown make by their attributes."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and _equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return a == b or (a != a and b != b)
    if hasattr(a, "tobytes"):  # a picture
        return bool(a.tobytes() == b.tobytes())
    attributes = getattr(a, "__dict__", None)
    return same(attributes, vars(b)) if isinstance(attributes, dict) else bool(a == b)


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.layout != torch.strided:
        return same(a.to_dense(), b.to_dense())
    return bool(torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


# Files that are decoded both ways; the mean difference of a picture, as a part of the range of its
# values. libjpeg-turbo against nvJPEG is about 0.003, resizing a picture in place of a tensor 0.01.
N_DECODED = 8
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
    for k in sorted({i * n // N_DECODED for i in range(N_DECODED)}):
        file, label = files[k]
        if bytes(file[:3].tolist()) != _JPEG:
            raise TrialRefused("its files are no JPEG files, or not all of them")
        _seed(k)
        own = dataset[k]
        _seed(k)
        try:
            (picture,), labels = finish(joined([(file, label)]))
        except TrialRefused:
            raise
        except Exception as error:  # transforms that want a picture of PIL, or a decoder's refusal
            raise TrialRefused(
                f"its files can't be decoded and transformed there: {type(error).__name__}: {error}"
            ) from error
        if not (isinstance(own, tuple) and len(own) == 2 and isinstance(own[0], Tensor)):
            raise TrialRefused("its samples are no pairs of a tensor and a label")
        alike = (own[0].shape, own[0].dtype) == (picture.shape, picture.dtype)
        if not alike or not same(default_collate([own[1]]), labels):
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
