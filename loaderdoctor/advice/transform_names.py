"""A dataset's transforms, as their names tell: which draw at random, which make floats of bytes."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from loaderdoctor.advice import bare
from loaderdoctor.advice.call_edit import argument
from loaderdoctor.advice.source import called_name, sources_of
from loaderdoctor.facts import Facts

# Make a tensor of a picture; the first scales it to 0 … 1 as well.
CONVERTING = frozenset({"ToTensor", "PILToTensor", "ToImage"})
# Make floats, which of bytes are 0 … 1. ToDtype alone is told whether to scale.
_SCALING = frozenset({"ToTensor", "ConvertImageDtype", "ConvertDtype", "ToDtype"})
# Conversions and scaling: the same for every image of a batch, whatever its content.
BATCHWISE = CONVERTING | _SCALING | {"Normalize"}
# Leave a picture what it is.
_ALIKE = frozenset({"ToPILImage", "ToPureTensor", "Identity"})
# Give the same of the same picture each time they are called.
_SAME_EACH_TIME = (
    BATCHWISE
    | _ALIKE
    | {"Resize", "CenterCrop", "Pad", "Grayscale", "RGB", "FiveCrop", "TenCrop"}
    | {"LinearTransformation"}
)
_RANDOM = re.compile(
    r"^Rand|Random|Jitter|AutoAugment|TrivialAugment|AugMix|Erasing|MixUp|CutMix|Cutout|Dropout"
    r"|Noise|Elastic|GaussianBlur|^JPEG$"
)


def transform_names(facts: Facts) -> tuple[str, ...]:
    """The transforms that were timed, in order."""
    return tuple(bare(name) for name, _ in (facts.workers.transforms if facts.workers else ()))


def random_transforms(facts: Facts) -> tuple[str, ...]:
    """Transforms that draw at random: by their names, or by what their code was seen to call."""
    drawing = _owners(facts)
    return tuple(name for name in _every_name(facts) if _RANDOM.search(name) or name in drawing)


def batchwise_transforms(facts: Facts) -> tuple[str, ...]:
    """The last transforms, as far as they may run on whole batches, in order.

    Empty where they scale nothing: a tensor is made of each picture by itself.
    """
    names, n = transform_names(facts), 0
    while n < len(names) and names[len(names) - 1 - n] in BATCHWISE:
        n += 1
    last = names[len(names) - n :]
    return last if set(last) & (_SCALING | {"Normalize"}) else ()


def scales_bytes(facts: Facts, last: Sequence[str]) -> bool | None:
    """Whether the `last` transforms make 0 … 1 of bytes; None where that can't be told.

    Normalize alone may be another library's, which scales, unless floats were made before it.
    """
    names = transform_names(facts)
    before = names[: len(names) - len(last)]
    if any(name in _SCALING for name in before):
        return False
    made = next((name for name in last if name in _SCALING), None)
    if made is None:
        return None
    return _said_to_scale(facts) if made == "ToDtype" else True


def only_converts(facts: Facts) -> bool:
    """Whether no transform is known that does more to a picture than convert and scale it.

    What draws at random does, wherever in the dataset's code.
    """
    loader = facts.main_loader
    if loader is None or loader.randomness:
        return False
    return set(_every_name(facts)) <= BATCHWISE | _ALIKE


def first_drawn(facts: Facts) -> str | None:
    """The first transform that is not known to give the same each time.

    None where there is none, or where what goes before the transforms may draw at random too.
    """
    names, loader = transform_names(facts), facts.main_loader
    first = next((i for i, name in enumerate(names) if name not in _SAME_EACH_TIME), None)
    if first is None or loader is None:
        return None
    behind = set(names[first:])
    # Transforms inherit what draws: `_RandomApplyTransform.forward`.
    known = all(x in behind or _RANDOM.search(x) for x in _owners(facts))
    return names[first] if known and loader.dataset not in _owners(facts) else None


def _every_name(facts: Facts) -> tuple[str, ...]:
    loader = facts.main_loader
    own = map(bare, loader.augmentations if loader is not None else ())
    return tuple(dict.fromkeys((*own, *transform_names(facts))))


def _owners(facts: Facts) -> frozenset[str]:
    """The classes whose code draws at random, and functions that do: `RandAugment`, `augment`."""
    loader = facts.main_loader
    names = loader.randomness if loader is not None else ()
    return frozenset(name.rpartition(".")[0].rpartition(".")[2] or name for name in names)


def _said_to_scale(facts: Facts) -> bool | None:
    """Whether each ToDtype(…) of the script is told to scale; None: there is none, or some are."""
    found = {
        _is_true(argument(call, "scale", ("dtype", "scale")))
        for source in sources_of(facts)
        for call in source.calls()
        if called_name(call) == "ToDtype"
    }
    return found.pop() if len(found) == 1 else None


def _is_true(node: ast.expr | None) -> bool | None:
    """The truth of what is written there, False where nothing is; None where it is computed."""
    if node is None:
        return False
    return bool(node.value) if isinstance(node, ast.Constant) else None
