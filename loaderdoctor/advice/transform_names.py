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
_RANDOM = re.compile(r"Random|Jitter|AutoAugment|TrivialAugment|AugMix|Erasing|MixUp|CutMix")


def transform_names(facts: Facts) -> tuple[str, ...]:
    """The transforms that were timed, in order."""
    return tuple(bare(name) for name, _ in (facts.workers.transforms if facts.workers else ()))


def random_transforms(facts: Facts) -> tuple[str, ...]:
    """Transforms that draw at random, by their names."""
    return tuple(name for name in _every_name(facts) if _RANDOM.search(name))


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


def _every_name(facts: Facts) -> tuple[str, ...]:
    loader = facts.main_loader
    own = map(bare, loader.augmentations if loader is not None else ())
    return tuple(dict.fromkeys((*own, *transform_names(facts))))


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
