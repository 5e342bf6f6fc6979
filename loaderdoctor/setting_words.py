"""How a setting reads: in torch's own spelling where torch has it, else in words.

`num_workers=4`, `persistent_workers=True`; but `a background thread (prefetch_generator)`. Names of
axes that are ours are words of the command line (`--grid background=host`) and of report.json; on
screen nobody could type them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Value = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Of one axis: a `spelling` of torch's, or texts for what it switches `on` and `off`."""

    spelling: str = ""
    is_call: bool = False  # the spelling is a function that takes the value
    on: str = ""
    off: str = ""  # "": being off goes without saying
    title: str = ""  # the heading of a column, where neither spelling nor `on` is short enough
    values: Mapping[Value, str] | None = None  # of an axis with named values; others go unsaid
    other: str = ""  # the words before any other value, such as a path


READINGS: Mapping[str, Reading] = {
    "num_workers": Reading(spelling="num_workers"),
    "prefetch_factor": Reading(spelling="prefetch_factor"),
    "persistent_workers": Reading(spelling="persistent_workers"),
    "pin_memory": Reading(spelling="pin_memory"),
    "in_order": Reading(spelling="in_order"),
    "start_method": Reading(spelling="multiprocessing_context"),
    "background": Reading(
        title="background thread",
        values={
            "off": "",
            "host": "a background thread (prefetch_generator)",
            "device": "a background thread that copies too (prefetch_generator)",
        },
    ),
    "non_blocking": Reading(spelling="non_blocking"),
    "side_stream": Reading(on="copies on a CUDA stream apart", title="stream apart"),
    "resident": Reading(on="the whole dataset on the device", title="data on device"),
    "keep_iterator": Reading(on="one iterator for all epochs", title="one iterator"),
    "portion": Reading(title="part of the data"),
    "cache": Reading(on="made samples kept in memory", title="samples in memory"),
    "storage": Reading(
        title="disk",
        values={
            "original": "",
            "cold": "the files not cached yet",
            "tmpfs": "the files in memory (tmpfs)",
        },
        other="the files on",
    ),
    "synthetic": Reading(on="synthetic batches"),
    "augment": Reading(
        title="augmentation", values={"on": "", "each": "", "off": "no augmentation"}
    ),
    "fields": Reading(title="inputs", values={"all": "", "each": ""}, other="only the input"),
    "uint8": Reading(on="copied as uint8, normalised on the device", title="copied as uint8"),
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
    "fused_optimizer": Reading(on="fused optimizer", off="unfused optimizer"),
    "ddp": Reading(
        title="several GPUs",
        values={"none": "", "data_parallel": "DataParallel", "ddp": "DDP"},
    ),
    "dali": Reading(on="NVIDIA DALI"),
    "num_threads": Reading(spelling="torch.set_num_threads", is_call=True),
    "gc": Reading(
        title="garbage collection",
        values={"automatic": "", "frozen": "gc.freeze()", "manual": "gc.disable()"},
    ),
}


def label(name: str, value: Value) -> str:
    """One setting in a list of them; empty for what goes without saying."""
    reading = READINGS[name]
    if reading.spelling:
        said = f"({value})" if reading.is_call else f"={value!r}"
        return reading.spelling + said
    if isinstance(value, bool):
        return reading.on if value else reading.off
    if name == "portion" and isinstance(value, int | float):
        return f"the first {100 * value:g} % of the data"
    if reading.values is not None and value in reading.values:
        return reading.values[value]
    if name == "augment":
        return f"without {str(value).removeprefix('no-')}"
    return f"{reading.other} {value}".strip()


def phrase(name: str, value: Value) -> str:
    """As `label`; what is switched off is said too: as a change, or against a loop that has it."""
    if name not in READINGS:
        return f"{name}={value}"
    if said := label(name, value):
        return said
    return f"without {READINGS[name].on}" if value is False else f"{heading(name)}: {value}"


def heading(name: str) -> str:
    """The axis as the heading of a column, and in sentences."""
    reading = READINGS.get(name)
    if reading is None:
        return name
    return reading.title or reading.spelling or reading.on
