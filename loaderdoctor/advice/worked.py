"""Examples to copy in the user's own names, shapes and figures, and over their own loader line."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from loaderdoctor.advice import dataset_snippets
from loaderdoctor.advice.call_edit import (
    CannotEdit,
    Expression,
    argument,
    parsed_call,
    span_of,
    with_arguments,
)
from loaderdoctor.advice.code import (
    LOADER_DEFAULTS,
    LOADER_PARAMETERS,
    CodeEdit,
    edit_loader_call,
    loader_call,
)
from loaderdoctor.advice.transform_names import (
    CONVERTING,
    only_converts,
    scales_bytes,
    transform_names,
)
from loaderdoctor.facts import Facts
from loaderdoctor.instrument.wire.records import LoaderRecord, StoreRecord, TensorRecord
from loaderdoctor.settings import Settings

_LOADER = "\nloader = DataLoader("
# Channels come last in what fromarray() takes, and there are so many of them.
MAX_CHANNELS = 4
# What a dataset holds for each sample, and the tensor of a batch that it becomes.
Column = tuple[StoreRecord, TensorRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """A dataset of ours around, or in place of, the loader's own."""

    code: str  # what defines it
    dataset: str  # what the loader is given; braces stand for the dataset as written
    slices: bool = False  # whole batches: collated by `as_it_is`, without workers
    keeps: bool = False  # makes every sample when it is built

    def over(self, dataset: str) -> str:
        """What the loader is given, of the dataset as written."""
        return self.dataset.format(dataset)


def rows(loader: LoaderRecord | None) -> Wrapping | None:
    """Whole batches, where samples are rows of tensors or arrays that the dataset holds.

    None where which these are is not known: two have rows of one shape, or none has; or where a
    batch holds more than tensors.
    """
    if loader is None or loader.collate != "default_collate" or loader.kind != "map":
        return None
    if loader.holds_others:  # which no array of the dataset's is known to hold
        return None
    if loader.dataset == "TensorDataset":
        code = dataset_snippets.WHOLE_BATCHES
        return Wrapping(code=code, dataset="WholeBatches({})", slices=True)
    found = columns(loader)
    if found is None:
        return None
    return Wrapping(code=dataset_snippets.row_batches(found), dataset="Rows({})", slices=True)


def columns(loader: LoaderRecord) -> tuple[tuple[str, str, str], ...] | None:
    """For each tensor of a batch its path, the attribute whose rows it holds, and a cast.

    By the shapes alone: that they are its rows, a trial has to show.
    """
    found = []
    one_level = all(t.path.count("[") == bool(t.path) and "." not in t.path for t in loader.batch)
    if not one_level or loader.batch_type not in ("list", "dict", "Tensor"):
        return None
    for tensor in loader.batch:
        alike = [s for s in loader.stores if _may_hold(s, tensor)]
        if len(alike) != 1:
            return None
        same = alike[0].dtype == tensor.dtype or alike[0].kind == "list"
        found.append((tensor.path, alike[0].path, "" if same else f".to(torch.{tensor.dtype})"))
    return tuple(found) or None


def _may_hold(store: StoreRecord, tensor: TensorRecord) -> bool:
    if store.path.startswith("dataset."):  # a part of its samples, in another order
        return False
    if store.kind == "list":
        return len(tensor.shape) == 1 and (store.entry, tensor.dtype) == ("int", "int64")
    return store.kind in ("tensor", "array") and store.shape[1:] == tensor.shape[1:]


def over_call(loader: LoaderRecord, call: str, dataset: str, wrapping: Wrapping) -> CodeEdit | None:
    """The loader's call over a wrapped dataset; None where it can't be changed safely."""
    alone = msgspec.structs.replace(loader, code=call, id="call:1")
    return with_dataset(alone, dataset, collate="as_it_is" if wrapping.slices else None)


def from_array(facts: Facts) -> Wrapping | None:
    """FROM_ARRAY for the dataset's array of images: its name, layout, mean and deviation.

    None where its samples are not known to be images of that array, converted and no more.
    """
    found, loader = image_columns(facts), facts.main_loader
    if found is None or loader is None:
        return None
    (images, image), (labels, label) = found
    text = dataset_snippets.FROM_ARRAY
    scaling = ".float().div_(255)" if images.dtype == "uint8" else ".float()"
    if image.dtype == "uint8":
        scaling = ""
    text = text.replace(".unsqueeze(1).float().div_(255)", _to_channels_first(images) + scaling)
    text = text.replace(".sub_(0.1307).div_(0.3081)", _normalised(loader))
    text = text.replace("dataset.data", f"dataset.{images.path}")
    cast = (
        "" if labels.dtype == label.dtype or labels.kind == "list" else f".to(torch.{label.dtype})"
    )
    text = text.replace("dataset.targets)", f"dataset.{labels.path}){cast}")
    return Wrapping(code=_definitions(text), dataset="Batches({})", slices=True)


def image_columns(facts: Facts) -> tuple[Column, Column] | None:
    """The dataset's array of images and its labels, each with the tensor of a batch it becomes.

    None where samples may be anything else: of other arrays, augmented, resized, scaled otherwise.
    """
    loader = facts.main_loader
    if loader is None or loader.kind != "map" or loader.collate != "default_collate":
        return None
    if [tensor.path for tensor in loader.batch] != ["[0]", "[1]"] or not only_converts(facts):
        return None
    image, label = loader.batch
    own = [s for s in loader.stores if not s.path.startswith("dataset.")]  # of other lengths
    of_images = [
        s for s in own if s.kind in ("array", "tensor") and _shape_of(s) == image.shape[1:]
    ]
    of_labels = [s for s in own if _may_be_labels(s, label)]
    if len(of_images) != 1 or len(of_labels) != 1:
        return None
    converted = _converted(facts, of_images[0], image)
    return ((of_images[0], image), (of_labels[0], label)) if converted else None


def _converted(facts: Facts, images: StoreRecord, image: TensorRecord) -> bool:
    """Whether that makes these of them: 0 … 1 of bytes, normalised as was recorded."""
    names, loader = transform_names(facts), facts.main_loader
    normalised = "Normalize" in names
    if loader is None or (normalised and loader.normalisation is None):
        return False
    if image.dtype == "uint8":
        return images.dtype == "uint8" and loader.normalisation is None
    if image.dtype != "float32":
        return False
    # Without a Compose its __getitem__ does it; whether as to_tensor() does, the code compares.
    return images.dtype.startswith("float") or not names or scales_bytes(facts, names) is True


def sliced(loader: LoaderRecord | None) -> Wrapping | None:
    """All samples as one tensor, or one for each part of a batch: a list, or a dict by its keys.

    None where a batch is made of anything else.
    """
    if loader is not None and loader.holds_others:
        return None
    text, paths = dataset_snippets.SLICED, [t.path for t in loader.batch] if loader else ["[0]"]
    several, one = "[column[indices] for column in self.columns]", "tuple(column[index] for column"
    if paths == [""]:
        text = text.replace("self.columns[0]", "self.columns")
        text = text.replace(several, "self.columns[indices]")
        text = text.replace(f"{one} in self.columns)", "self.columns[index]")
    elif paths and all(path.startswith("['") and path.count("[") == 1 for path in paths):
        text = text.replace("self.columns[0]", "next(iter(self.columns.values()))")
        for at, of in (("indices", several), ("index", f"{one} in self.columns)")):
            items = f"{{name: column[{at}] for name, column in self.columns.items()}}"
            text = text.replace(of, items)
    elif paths != [f"[{i}]" for i in range(len(paths))]:
        return None
    return Wrapping(code=_definitions(text), dataset="Sliced({})", slices=True, keeps=True)


CACHED = Wrapping(
    code=dataset_snippets.CACHED[: dataset_snippets.CACHED.rindex(_LOADER)],
    dataset="Cached({})",
    keeps=True,
)


def wrapping_of_another(
    wrapping: Wrapping, main: LoaderRecord, other: LoaderRecord
) -> Wrapping | None:
    """What stands around another loader's dataset where `wrapping` does around the main one's.

    None where that is of the main one's own (its array, its transforms), and nothing for others.
    """
    if wrapping == CACHED:
        return CACHED
    return next((make(other) for make in (sliced, rows) if make(main) == wrapping), None)


def _definitions(text: str) -> str:
    """An example without its last statement, which builds the loader."""
    return text[: text.rindex(_LOADER)]


def batchwise(loader: LoaderRecord | None, last: Sequence[str], *, scaled: bool) -> str:
    """In a sentence: leave the `last` transforms out, with the dataset's own mean and deviation.

    `scaled`: they make 0 … 1 of bytes.
    """
    names = " and ".join(f"{x}()" for x in last)
    left = f"Leave {names} out of {dataset_name(loader)}'s transform"
    if any(name in CONVERTING for name in last):  # else samples are tensors before these
        left += " (PILToTensor() in their place)"
    normalised = _normalised(loader) if loader is not None else ""
    normalised = normalised.replace("]).view", "], device=device).view")
    floats = ".float().div_(255)" if scaled else ".float()"
    then = ", and give that to Normalize()" if "Normalize" in last and not normalised else ""
    return f"{left}, and scale the whole batch: `images.to(device){floats}{normalised}`{then}."


def over_own_line(loader: LoaderRecord | None, wrapping: Wrapping) -> str | None:
    """The wrapping and the user's own line with it: for where only that line is known.

    None where it isn't, or can't be changed safely.
    """
    dataset = wrapping.over(dataset_source(loader))
    edit = with_dataset(loader, dataset, collate="as_it_is" if wrapping.slices else None)
    if edit is None or loader is None:
        return None
    if wrapping.slices:
        edit = replace(edit, after=without_workers(loader, edit.after))
    return f"{wrapping.code}\n{edit.diff()}"


def without_workers(loader: LoaderRecord, code: str) -> str:
    """The loader's line without workers: they only add a queue to what takes microseconds."""
    if not loader.settings.num_workers:
        return code
    alone = edit_loader_call(code, Settings(num_workers=0), index=loader.call_index)
    return alone.after if alone.exact else code


def dataset_name(loader: LoaderRecord | None) -> str:
    """What the script calls its dataset; `dataset` where the line doesn't say."""
    name = _written(loader)
    return name if name is not None and _is_name(name) else "dataset"


def dataset_source(loader: LoaderRecord | None) -> str:
    """The dataset as the line has it, be it a call that makes it; `dataset` where it has none.

    To be written once: what makes a dataset twice takes twice its memory.
    """
    return _written(loader) or "dataset"


def with_dataset(
    loader: LoaderRecord | None, dataset: str, *, collate: str | None = None
) -> CodeEdit | None:
    """The line that builds the loader over `dataset` (source text), and that collate function.

    None where the line isn't known, or can't be changed safely.
    """
    found = _dataset_argument(loader)
    if found is None or loader is None:
        return None
    source, (start, end) = found
    after = source[:start] + dataset + source[end:]
    span = loader_call(after, loader.call_index)
    call = parsed_call(after[slice(*span)]) if span is not None else None
    if span is None or call is None:
        return None
    if collate is not None:
        own = argument(call, "collate_fn", LOADER_PARAMETERS)
        none = own is None or (isinstance(own, ast.Constant) and own.value is None)
        unpacks = any(k.arg is None for k in call.keywords)
        if not none or (unpacks and loader.collate != "default_collate"):
            return None  # it has one, or what is unpacked holds it
        try:
            text = with_arguments(
                after[slice(*span)],
                {"collate_fn": Expression(collate)},
                parameters=LOADER_PARAMETERS,
                defaults=LOADER_DEFAULTS,
            )
        except CannotEdit:
            return None
        after = after[: span[0]] + text + after[span[1] :]
    return CodeEdit(before=source, after=after)


def _may_be_labels(store: StoreRecord, label: TensorRecord) -> bool:
    """Whether it holds a number for each sample that may be this one of a batch."""
    if len(label.shape) != 1:
        return False
    if store.kind == "list":
        return (store.entry, label.dtype) == ("int", "int64")
    whole = "int" in label.dtype
    return (
        store.kind in ("tensor", "array")
        and len(store.shape) == 1
        and (("int" in store.dtype) if whole else store.dtype == label.dtype)
    )


def _shape_of(images: StoreRecord) -> tuple[int, ...]:
    """An image of the array as (channels, height, width)."""
    if len(images.shape) == 3:
        return (1, *images.shape[1:])
    if len(images.shape) == 4 and images.shape[-1] <= MAX_CHANNELS:
        return (images.shape[-1], *images.shape[1:-1])
    return images.shape[1:]


def _to_channels_first(images: StoreRecord) -> str:
    """What makes (n, channels, height, width) of the batch."""
    if len(images.shape) == 3:
        return ".unsqueeze(1)"
    return ".permute(0, 3, 1, 2)" if images.shape[-1] <= MAX_CHANNELS else ""


def _normalised(loader: LoaderRecord) -> str:
    """Normalize as a call on a batch of floats; empty where the dataset has none."""
    norm = loader.normalisation
    if norm is None:
        return ""
    mean, std = (
        f"{x[0]:g}"
        if len(x) == 1
        else f"torch.tensor({[float(f'{v:g}') for v in x]}).view(-1, 1, 1)"
        for x in (norm.mean, norm.std)
    )
    return f".sub_({mean}).div_({std})"


def _written(loader: LoaderRecord | None) -> str | None:
    found = _dataset_argument(loader)
    return found[0][slice(*found[1])] if found is not None else None


def _is_name(source: str) -> bool:
    return isinstance(ast.parse(f"({source})", mode="eval").body, (ast.Name, ast.Attribute))


def _dataset_argument(loader: LoaderRecord | None) -> tuple[str, tuple[int, int]] | None:
    """The line, and where in it the dataset stands."""
    if loader is None or loader.code is None or loader.library is not None:
        return None
    source = textwrap.dedent(loader.code).strip("\n")
    span = loader_call(source, loader.call_index)
    call = parsed_call(source[span[0] : span[1]]) if span is not None else None
    if span is None or call is None:
        return None
    named = next((k.value for k in call.keywords if k.arg == "dataset"), None)
    node = named or (call.args[0] if call.args else None)
    if node is None or isinstance(node, ast.Starred):
        return None
    start, end = span_of(source[span[0] : span[1]], node)
    return source, (span[0] + start, span[0] + end)
