"""`augment`: a dataset without its augmentation, or without one transform of its Compose.

A transform that decides the shape of a sample (a random crop) is replaced by its counterpart
without chance; one that nothing can replace stays, and leaving it out alone is refused.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.dataset.dataset_tree import replaced
from loaderdoctor.instrument.dataset.samples import kind_of, shapes_in, some_samples
from loaderdoctor.instrument.workers.transform_probe import find_composes

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


def without_augmentation(dataset: Any, augment: str) -> Any:
    """The dataset with `augment` = off or no-NAME; the user's own is unchanged.

    Samples keep their kind. Raises TrialRefused where there is nothing to leave out, or where a
    sample would change its shape.
    """
    composes = find_composes(dataset)
    if not composes:
        raise TrialRefused("no Compose was found in the attributes of the dataset")
    wanted = augmentations(dataset) if augment == "off" else (augment.removeprefix("no-"),)
    known = {transform_name(t) for c in composes for t in vars(c)["transforms"]}
    if not set(wanted) & known:
        there = ", ".join(sorted(known))
        raise TrialRefused(f"no {wanted[0] if wanted else 'augmentation'} among {there}")
    kinds = [kind_of(sample) for sample in some_samples(dataset)]
    left_out: dict[int, Any] = {}  # id of a transform -> None, or what stands in for it
    problem = ""
    for transform in (t for c in composes for t in vars(c)["transforms"]):
        if transform_name(transform) not in wanted:
            continue
        for other in (*_counterparts(transform), None):
            trial = {**left_out, id(transform): other}
            try:
                found = [kind_of(s) for s in some_samples(_changed(dataset, composes, trial))]
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
    module: Any = sys.modules.get(type(transform).__module__)
    name, size = transform_name(transform), getattr(transform, "size", None)
    if size is None:
        return
    for made_by in {"RandomResizedCrop": ("Resize",), "RandomCrop": ("CenterCrop",)}.get(name, ()):
        package: Any = module
        if not hasattr(package, made_by):  # torchvision.transforms.v2._geometry has both
            package = sys.modules.get(type(transform).__module__.rpartition(".")[0])
        maker = getattr(package, made_by, None)
        if maker is not None:
            yield maker(tuple(size) if isinstance(size, (list, tuple)) else (size, size))
