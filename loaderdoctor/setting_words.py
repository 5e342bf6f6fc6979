"""How a setting reads: in torch's own spelling where torch has it, else in words.

`num_workers=4`, `persistent_workers=True`; but `a background thread (prefetch_generator)`. Names of
axes that are ours are words of the command line (`--grid background=host`) and of report.json; on
screen nobody could type them. A phrase is a noun or a gerund, one thing, so that it may begin a
sentence ("… brings it to 2.3 ms"), follow a verb ("Try …") and stand in a list of settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Value = bool | int | float | str | None

# What a change does to what is trained, where losses differ by what is computed: each sample comes
# as it did.
NUMERICS_CHANGE = "numerics change"
PIXELS_DIFFER = "pixels differ a little, and random draws are made in the training process"
FEWER_PARAMETERS = "the model has fewer parameters"
_COMPUTES_OTHERWISE = frozenset({NUMERICS_CHANGE, PIXELS_DIFFER, FEWER_PARAMETERS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Of one axis: a `spelling` of torch's, or texts for what it switches `on` and `off`."""

    spelling: str = ""
    is_call: bool = False  # the spelling is a function that takes the value
    on: str = ""
    off: str = ""  # "": being off goes without saying
    without: str = ""  # being off, as a change; "": `no` and what `on` says
    title: str = ""  # the heading of a column, where neither spelling nor `on` is short enough
    values: Mapping[Value, str] | None = None  # of an axis with named values
    unsaid: tuple[Value, ...] = ()  # of those, what goes without saying in a list
    other: str = ""  # the words before any other value, such as a path


READINGS: Mapping[str, Reading] = {
    "num_workers": Reading(spelling="num_workers"),
    "prefetch_factor": Reading(spelling="prefetch_factor"),
    "persistent_workers": Reading(spelling="persistent_workers"),
    "pin_memory": Reading(spelling="pin_memory"),
    "in_order": Reading(spelling="in_order"),
    "start_method": Reading(spelling="multiprocessing_context"),
    "worker_cpus": Reading(
        title="workers' CPUs",
        values={
            "inherited": "workers on the CPUs of the training process",
            "all": "letting workers use all CPUs",
            "apart": "binding each worker to a CPU",
            "numa": "binding workers to NUMA nodes in turns",
        },
        unsaid=("inherited",),
    ),
    "worker_gc": Reading(
        title="garbage collection in workers",
        values={
            "automatic": "automatic garbage collection in workers",
            "frozen": "gc.freeze() in workers",
            "rarely": "gc.freeze() with rarer collections in workers",
        },
        unsaid=("automatic",),
    ),
    "background": Reading(
        title="background thread",
        values={
            "off": "no background thread",
            "host": "a background thread (prefetch_generator)",
            "device": "a background thread that copies too (prefetch_generator)",
        },
        unsaid=("off",),
    ),
    "reuse_buffers": Reading(
        on="handing batches over in reused buffers",
        without="handing batches over in new shared memory",
        title="used buffers",
    ),
    "threads": Reading(title="loading threads"),
    "spdl": Reading(
        on="SPDL's loader in place of torch's", without="torch's own loader", title="SPDL"
    ),
    "non_blocking": Reading(spelling="non_blocking"),
    "side_stream": Reading(
        on="copying on a separate CUDA stream",
        without="copying on the loop's own stream",
        title="separate stream",
    ),
    "packed": Reading(
        on="copying the small tensors of a batch as one",
        without="copying each tensor of a batch alone",
        title="one packed copy",
    ),
    "resident": Reading(
        on="keeping the whole dataset on the device",
        without="keeping the dataset off the device",
        title="data on device",
    ),
    "keep_iterator": Reading(
        on="one iterator for all epochs", without="a new iterator each epoch", title="one iterator"
    ),
    "portion": Reading(title="part of the data"),
    "cache": Reading(
        on="keeping prepared samples in memory",
        without="making samples each time",
        title="samples in memory",
    ),
    "batched": Reading(
        on="making whole batches by one indexing call",
        without="fetching samples one by one",
        title="batched indexing",
    ),
    "storage": Reading(
        title="disk",
        values={
            "original": "the files where they are",
            "cold": "reading files that are not cached yet",
            "tmpfs": "reading the files from memory (tmpfs)",
        },
        unsaid=("original",),
        other="reading the files from",
    ),
    "synthetic": Reading(on="synthetic batches", without="the loader's own batches"),
    "augment": Reading(
        title="augmentation",
        values={
            "on": "augmentation",
            "each": "each transform left out in turn",
            "off": "no augmentation",
        },
        unsaid=("on", "each"),
    ),
    "fields": Reading(
        title="inputs",
        values={"all": "all inputs", "each": "each input alone in turn"},
        unsaid=("all", "each"),
        other="only the input",
    ),
    "uint8": Reading(
        on="copying as uint8 and normalising on the device",
        without="copying as the dataset makes it",
        title="copied as uint8",
    ),
    "device_decode": Reading(
        on="decoding and transforming JPEG files on the device",
        without="decoding where samples are made",
        title="decoded on device",
    ),
    "amp": Reading(on="AMP"),
    "batch_size": Reading(spelling="batch_size"),
    "channels_last": Reading(on="memory_format=torch.channels_last", title="channels last"),
    "cudnn_benchmark": Reading(spelling="cudnn.benchmark"),
    "tf32": Reading(on="TF32", off="no TF32"),
    "compile": Reading(on="torch.compile"),
    "zero_grad_none": Reading(
        on="zero_grad(set_to_none=True)", off="zero_grad(set_to_none=False)", title="set_to_none"
    ),
    "checkpoint": Reading(on="activation checkpointing", title="checkpointing"),
    "fused_optimizer": Reading(
        on="a fused optimizer", off="an unfused optimizer", title="fused optimizer"
    ),
    "ddp": Reading(
        title="several GPUs",
        values={"none": "one GPU", "data_parallel": "DataParallel", "ddp": "DDP"},
        unsaid=("none",),
    ),
    "dali": Reading(on="NVIDIA DALI"),
    "num_threads": Reading(spelling="torch.set_num_threads", is_call=True),
    "gc": Reading(
        title="garbage collection",
        values={
            "automatic": "automatic garbage collection",
            "frozen": "gc.freeze()",
            "manual": "gc.disable()",
        },
        unsaid=("automatic",),
    ),
}


def label(name: str, value: Value) -> str:
    """One setting in a list of them; empty for what goes without saying."""
    reading = READINGS[name]
    if isinstance(value, bool) and not reading.spelling:
        return reading.on if value else reading.off
    return "" if value in reading.unsaid else phrase(name, value)


def phrase(name: str, value: Value) -> str:
    """As `label`; what is switched off is said too: as a change, or against a loop that has it."""
    reading = READINGS.get(name)
    if reading is None:
        return f"{name}={value}"
    if reading.spelling:
        said = f"({value})" if reading.is_call else f"={value!r}"
        return reading.spelling + said
    if isinstance(value, bool):
        off = reading.off or reading.without or f"no {reading.on}"
        return reading.on if value else off
    if name == "portion" and isinstance(value, int | float):
        return f"the first {100 * value:g} % of the data"
    if reading.values is not None and value in reading.values:
        return reading.values[value]
    if name == "threads":
        return f"loading in {value} thread{'s' if value != 1 else ''} instead of workers"
    if name == "augment":
        return f"no {str(value).removeprefix('no-')}"
    return f"{reading.other} {value}".strip()


def together(settings: Iterable[tuple[str, Value]], *also: str) -> str:
    """Settings, and what else belongs to them, as one: `num_workers=7 with pin_memory=True`.

    Ours come first, since "with keeping …" is no English.
    """
    ours: dict[str, None] = {}
    torchs: dict[str, None] = {}
    for name, value in settings:
        is_ours = name in READINGS and not READINGS[name].spelling
        (ours if is_ours else torchs)[phrase(name, value)] = None
    first, others = (list(ours), list(torchs)) if ours else (list(torchs)[:1], list(torchs)[1:])
    *rest, last = [*others, *also] or [""]
    listed = f"{', '.join(rest)} and {last}" if rest else last
    return f"{' and '.join(first)} with {listed}" if listed else " and ".join(first)


def same_samples(trains: str) -> bool:
    """Whether changes that do this to training (`; ` between them) leave the batches as they are.

    Else they come in another order, or hold other samples.
    """
    return set(trains.split("; ")) <= _COMPUTES_OTHERWISE


def capitalised(said: str) -> str:
    """Words as a sentence begins: a setting keeps its spelling."""
    is_code = any(c in said.partition(" ")[0] for c in "=(.")
    return said if is_code else said[:1].upper() + said[1:]


def heading(name: str) -> str:
    """The axis as the heading of a column, and in sentences."""
    reading = READINGS.get(name)
    if reading is None:
        return name
    return reading.title or reading.spelling or reading.on
