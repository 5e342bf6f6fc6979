"""A dataset's transforms: left out one by one, or moved to the device."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import rebuild, tensors
from loaderdoctor.instrument.batches.h2d import ToDevice
from loaderdoctor.instrument.dataset import put_back
from loaderdoctor.instrument.dataset.dataset_tree import replaced
from loaderdoctor.instrument.dataset.safety import (
    kind_of,
    looked_at,
    own_copy,
    shapes_in,
    some_samples,
)
from loaderdoctor.instrument.workers.user_code import find_composes

# Conversions: without them a sample is another thing. By class name, since torchvision's first
# and second set of transforms, and those of other libraries, share names but no base class.
CONVERSIONS = frozenset({
    "ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToDtype", "ConvertImageDtype",
    "ConvertDtype", "Normalize", "Resize", "CenterCrop", "ToPILImage", "ToTensorV2", "Grayscale",
})  # fmt: skip


def augmentations(dataset: object) -> tuple[str, ...]:
    """Names of the transforms that may be left out, each once, in the order they run."""
    names = [transform_name(t) for c in find_composes(dataset) for t in vars(c)["transforms"]]
    return tuple(dict.fromkeys(name for name in names if name not in CONVERSIONS))


def transform_name(transform: Any) -> str:
    """The class or function, as the user knows it."""
    inner = getattr(transform, "func", None)  # functools.partial
    if callable(inner):
        return transform_name(inner)
    own = getattr(transform, "__name__", None)
    return own if isinstance(own, str) else type(transform).__name__


def without_augmentation(dataset: Any, augment: str, *, apart: bool) -> Any:
    """The dataset with `augment` = off or no-NAME; the user's own is unchanged.

    Samples keep their kind; they are looked at as `looked_at` says. Raises TrialRefused where there
    is nothing to leave out, or where a sample would change its shape.
    """
    composes = find_composes(dataset)
    if not composes:
        raise TrialRefused("no Compose was found in the attributes of the dataset")
    wanted = augmentations(dataset) if augment == "off" else (augment.removeprefix("no-"),)
    known = {transform_name(t) for c in composes for t in vars(c)["transforms"]}
    if not set(wanted) & known:
        there = ", ".join(sorted(known))
        raise TrialRefused(f"no {wanted[0] if wanted else 'augmentation'} among {there}")

    def kinds_in(changed: Any) -> list[Any]:
        with looked_at(changed, apart=apart) as made:
            return [kind_of(sample) for sample in some_samples(made)]

    kinds = kinds_in(dataset)
    left_out: dict[int, Any] = {}  # id of a transform -> None, or what stands in for it
    problem = ""
    for transform in (t for c in composes for t in vars(c)["transforms"]):
        if transform_name(transform) not in wanted:
            continue
        for other in (*_counterparts(transform), None):
            trial = {**left_out, id(transform): other}
            try:
                found = kinds_in(_changed(dataset, composes, trial))
            except Exception as error:  # transforms after this one may need what it makes
                problem = problem or f"{type(error).__name__}: {error}"
                continue
            if found == kinds:
                left_out = trial
                break
            problem = problem or f"samples become {shapes_in(found[0]) or 'another kind of thing'}"
    if not left_out:
        raise TrialRefused(f"{', '.join(wanted)} can't be left out: {problem}")
    return _changed(dataset, composes, left_out)


def _changed(dataset: Any, composes: Sequence[Any], left_out: dict[int, Any]) -> Any:
    made: dict[int, Any] = {}
    for compose in composes:
        new = copy.copy(compose)
        vars(new)["transforms"] = [
            left_out.get(id(transform), transform)
            for transform in vars(compose)["transforms"]
            if left_out.get(id(transform), transform) is not None
        ]
        made[id(compose)] = new
    return replaced(dataset, lambda value: made.get(id(value), value))


def _counterparts(transform: Any) -> Iterator[Any]:
    """What gives the same shape without chance, from the transform's own library."""
    size, name = getattr(transform, "size", None), transform_name(transform)
    made_by = {"RandomResizedCrop": "Resize", "RandomCrop": "CenterCrop"}.get(name)
    if size is None or made_by is None:
        return
    own = type(transform).__module__  # torchvision.transforms.v2._geometry has both; else above it
    makers = (getattr(sys.modules.get(x), made_by, None) for x in (own, own.rpartition(".")[0]))
    maker = next((x for x in makers if x is not None), None)
    if maker is not None:
        yield maker(tuple(size) if isinstance(size, (list, tuple)) else (size, size))


# `uint8`: batches travel as bytes and become normalised floats where they arrive.
#
# Only where the last transforms of the dataset's Compose are a conversion to floats of 0 … 1 and,
# perhaps, Normalize. The arithmetic and its order are torchvision's, on whole batches.


class ToBytes:
    """In place of ToTensor: the picture as uint8 (channels, height, width), not scaled."""

    def __call__(self, picture: Any) -> Tensor:
        """Raises TypeError for a picture that isn't made of bytes: ToTensor doesn't scale it."""
        array = np.array(picture, copy=True)
        if array.dtype != np.uint8:
            raise TypeError(f"pictures of {array.dtype} can't travel as uint8")
        if array.ndim == 2:
            array = array[:, :, None]
        return torch.from_numpy(array).permute(2, 0, 1).contiguous()


@dataclass(frozen=True, slots=True)
class Normaliser:
    """What was taken out of the dataset: scaling to 0 … 1 and, perhaps, mean and deviation."""

    paths: frozenset[str]  # tensors of a batch
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def __call__(self, batch: Any) -> tuple[Any, list[Tensor]]:
        """The batch with those tensors as floats, and these; on their device, its stream."""
        made: list[Tensor] = []

        def floats(path: str, tensor: Tensor) -> Tensor:
            if path not in self.paths or tensor.dtype != torch.uint8:
                return tensor
            result = tensor.to(torch.get_default_dtype()).div_(255)
            if self.mean is not None and self.std is not None:
                shape = (-1, 1, 1)
                like = {"dtype": result.dtype, "device": result.device}
                result.sub_(torch.tensor(self.mean, **like).view(shape))  # type: ignore[arg-type]
                result.div_(torch.tensor(self.std, **like).view(shape))  # type: ignore[arg-type]
            made.append(result)
            return result

        return rebuild(batch, floats), made


class NormalisingToDevice(ToDevice):
    """Moves a batch, then normalises it on the device."""

    def __init__(self, to_device: ToDevice, normalise: Normaliser) -> None:
        self.__dict__.update(vars(to_device))
        self._normalise = normalise

    def moves(self, path: str, tensor: Tensor) -> bool:
        """Also what the loop was seen to move as floats."""
        if path in self._normalise.paths and tensor.device != self.device:
            return True
        return super().moves(path, tensor)

    def move(self, batch: Any) -> tuple[Any, list[Tensor]]:
        """The batch on the device as the loop expects it; both kinds of new tensors."""
        batch, moved = super().move(batch)
        batch, made = self._normalise(batch)
        return batch, [*moved, *made]


def as_bytes(dataset: Any, collate: Any, *, apart: bool) -> tuple[Any, Normaliser]:
    """The dataset that gives bytes, and what makes of its batches what they were.

    `apart`: samples to compare are made by copies, for a dataset that lives in workers. Raises
    TrialRefused where the dataset isn't known to end in ToTensor (and Normalize).
    """
    made: dict[int, Any] = {}
    norms: set[tuple[tuple[float, ...], tuple[float, ...]] | None] = set()
    for compose in find_composes(dataset):
        kept, norm = _without_floats(vars(compose)["transforms"])
        if kept is None:
            continue
        new = copy.copy(compose)
        vars(new)["transforms"] = kept
        made[id(compose)] = new
        norms.add(norm)
    if not made:
        raise TrialRefused("no Compose of the dataset ends in ToTensor, or ToTensor and Normalize")
    if len(norms) > 1:
        raise TrialRefused("the dataset normalises its inputs in different ways")
    changed = replaced(dataset, lambda value: made.get(id(value), value))

    def batch_of(one: Any) -> dict[str, Tensor]:
        made_by, made_with = own_copy(one, collate) if apart else (one, collate)
        with put_back():
            return dict(tensors(made_with(some_samples(made_by)[:1])))

    try:
        before, after = batch_of(dataset), batch_of(changed)
    except TrialRefused:
        raise
    except Exception as error:  # the dataset's own code, on what it was not written for
        raise TrialRefused(
            f"its samples can't be bytes: {type(error).__name__}: {error}"
        ) from error
    paths = {
        path
        for path, tensor in after.items()
        if tensor.dtype == torch.uint8 and path in before and before[path].is_floating_point()
    }
    if not paths or any(before[p].shape != after[p].shape for p in paths):
        raise TrialRefused("no input of the batch becomes bytes without ToTensor")
    (norm,) = norms
    return changed, Normaliser(frozenset(paths), *(norm or (None, None)))


def _without_floats(
    transforms: list[Any],
) -> tuple[list[Any] | None, tuple[tuple[float, ...], tuple[float, ...]] | None]:
    """The list without its last conversion to floats, and what Normalize did; None: no such end."""
    rest = list(transforms)
    norm = None
    if rest and transform_name(rest[-1]) == "Normalize":
        last = rest.pop()
        mean, std = getattr(last, "mean", None), getattr(last, "std", None)
        if mean is None or std is None:
            return None, None
        norm = (_numbers(mean), _numbers(std))
    if not rest:
        return None, None
    name = transform_name(rest[-1])
    if name == "ToTensor":
        return [*rest[:-1], ToBytes()], norm
    scales = name == "ConvertImageDtype" or (
        name == "ToDtype" and getattr(rest[-1], "scale", False)
    )
    if scales and getattr(rest[-1], "dtype", None) == torch.get_default_dtype():
        return rest[:-1], norm
    return None, None


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in (values if hasattr(values, "__iter__") else (values,)))
