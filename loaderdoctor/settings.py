"""The settings a trial can change: the axes, and the values each of them takes.

A `Settings` names only what a trial changes: `None` means "as the user's own loop has it". In
JSON the keys are these field names and unset is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from loaderdoctor import setting_words
from loaderdoctor.errors import UsageError
from loaderdoctor.setting_words import Value as Value  # of which settings are made

Background = Literal["off", "host", "device"]
Collector = Literal["automatic", "frozen", "manual"]
StartMethod = Literal["fork", "spawn", "forkserver"]
WorkerCpus = Literal["inherited", "all", "apart", "numa"]
WorkerCollector = Literal["automatic", "frozen", "rarely"]
Parallel = Literal["none", "data_parallel", "ddp"]

DEFAULT_PREFETCH_FACTOR = 2  # torch's own, for num_workers > 0
# A worker's own memory (USS) once it has made one small batch, CUDA build of torch 2.14 on Linux:
# forked 11 MiB, spawned 281 MiB. Rounded up.
FORKED_WORKER_BYTES = 40 * 2**20
SPAWNED_WORKER_BYTES = 320 * 2**20
# Settings by which what was there at first serves all epochs.
KEEPING = ("persistent_workers", "cache", "batched", "resident")
# Pipes of its index queue, sentinel, resource sharer: 4 with torch 2.14, and as many to be safe.
FILES_PER_WORKER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One combination of loader and transfer settings; hashable, usable as a key."""

    num_workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    in_order: bool | None = None
    start_method: StartMethod | None = None
    worker_cpus: WorkerCpus | None = None  # which CPUs the workers run on
    # Python's garbage collector in workers: frozen looks at nothing that was there when they began,
    # rarely at the rest less often too.
    worker_gc: WorkerCollector | None = None
    background: Background | None = None
    reuse_buffers: bool | None = None  # workers write into shared memory that stays mapped
    threads: int | None = None  # of the training process, in place of workers
    spdl: bool | None = None  # SPDL's loader and workers make the batches
    non_blocking: bool | None = None
    side_stream: bool | None = None
    packed: bool | None = None  # the small tensors of a batch are copied as one
    resident: bool | None = None
    keep_iterator: bool | None = None  # one iterator, and its workers, serve all epochs
    # Data: what is read, from where, and what is made of it.
    portion: float | None = None  # 0 < portion <= 1: the first samples of the dataset only
    cache: bool | None = None  # samples kept in host memory as they were first made
    batched: bool | None = None  # a batch in one indexing call, no samples and no collating
    storage: str | None = None  # original | cold | tmpfs | a folder on another disk
    synthetic: bool | None = None  # ready batches, no loading at all: the upper bound
    augment: str | None = None  # on | off | no-NAME: that transform of a Compose left out
    fields: str | None = None  # all | the one input of a batch that is loaded, e.g. image, 0
    uint8: bool | None = None  # batches travel as uint8 and are normalised where they arrive
    device_decode: bool | None = None  # JPEG files are decoded and transformed on the device
    # Compute: these change numerics or training.
    amp: bool | None = None
    batch_size: int | None = None
    channels_last: bool | None = None
    cudnn_benchmark: bool | None = None
    tf32: bool | None = None
    compile: bool | None = None
    zero_grad_none: bool | None = None  # False: gradients are zeroed instead of dropped
    checkpoint: bool | None = None
    fused_optimizer: bool | None = None
    ddp: Parallel | None = None  # several devices: one process, or one for each
    dali: bool | None = None  # NVIDIA DALI reads, decodes and augments, on the device
    num_threads: int | None = None  # torch.set_num_threads: sums are made in another order
    # Python's garbage collector: frozen looks at nothing that is there now, manual never starts.
    gc: Collector | None = None

    def as_dict(self) -> dict[str, Value]:
        """Every axis by name, unset as None: the form of `settings` in report.json."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def changed(self) -> dict[str, Value]:
        return {name: value for name, value in self.as_dict().items() if value is not None}

    def over(self, base: Settings) -> Settings:
        """These settings where set, else those of `base`."""
        return Settings(**{**base.changed(), **self.changed()})  # type: ignore[arg-type]

    def label(self) -> str:
        """Text for a table row, e.g. `num_workers=4, pin_memory=True`; `as is` if empty."""
        parts = [setting_words.label(name, value) for name, value in self.changed().items()]
        return ", ".join(part for part in parts if part) or "as is"

    @property
    def queue_length(self) -> int:
        """Batches that workers have ready or under way; 0 without workers."""
        return (self.num_workers or 0) * (self.prefetch_factor or DEFAULT_PREFETCH_FACTOR)

    @property
    def keeps_loaders(self) -> bool:
        """Whether the loop's own batches and loaders serve as they are: the process changes."""
        names = set(self.changed())
        return bool(names) and names <= _OF_PROCESS

    @property
    def numerics(self) -> tuple[str, ...]:
        """The axes set here that change numerics or training; names, in order."""
        return tuple(
            name
            for name, value in self.changed().items()
            if (axis := AXES_BY_NAME[name]).numerics and not axis.is_idle(value)
        )

    @property
    def probes(self) -> tuple[str, ...]:
        """The axes set here that answer a question and are no setting to train with."""
        return tuple(
            name for name, value in self.changed().items() if AXES_BY_NAME[name].probes(value)
        )


_OF_PROCESS = {"num_threads", "gc"}
# Values of an axis that leave the loop as it is.
_IDLE = (False, "off", "original", "on", "all", "none", "automatic", "inherited", 1.0)
FROM_ONE = ("prefetch_factor", "batch_size", "num_threads", "threads")
_MAX_DIGITS = 12  # more than anything here counts; Python refuses to read very long numbers


def whole_number(text: str) -> int | None:
    """The number of 0 or more that these digits write; None where they don't."""
    # Superscripts and other scripts' digits are digits to str.isdigit too.
    plain = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if plain else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One setting: its values' type, when it means anything, and the code line that sets it."""

    name: str
    kind: Literal["int", "bool", "choice", "share", "text"]
    choices: tuple[str, ...] = ()  # "text": words that are accepted next to free text
    free_text: str = ""
    needs_accelerator: bool = False
    needs_workers: bool = False
    # "script": only the script itself can do it, as a recipe by one of its options.
    where: Literal["DataLoader", "transfer", "loop", "dataset", "model", "script"] = "DataLoader"
    numerics: bool = False  # changes numerics or training: tried only where asked for
    probe: Literal["never", "always", "cold"] = "never"  # see `probes`

    def is_idle(self, value: Value) -> bool:
        """Whether that value leaves the loop as it is (for most axes: off)."""
        # Of these, what switches nothing for other axes switches something.
        if self.kind == "int" or (self.name, value) in (("augment", "off"), ("worker_cpus", "all")):
            return False
        if self.name in ("cudnn_benchmark", "tf32", "zero_grad_none", "fused_optimizer"):
            return False  # switched either way
        return any(value is idle or (value == idle and value is not True) for idle in _IDLE)

    def probes(self, value: Value) -> bool:
        """Whether that value answers a question and is not a setting to train with."""
        if self.probe == "cold":
            return value == "cold"
        return self.probe == "always" and not self.is_idle(value)

    def parse(self, text: str) -> Value:
        """The value a user typed for this axis. Raises UsageError that names what is accepted."""
        word = text.strip().lower()
        if self.kind == "bool":
            if word in ("true", "1", "yes", "on"):
                return True
            if word in ("false", "0", "no", "off"):
                return False
            raise UsageError(f"{self.name}={text}: not a yes/no value; write true or false.")
        if self.kind == "int":
            number = whole_number(word)
            if number is None:
                raise UsageError(f"{self.name}={text}: not a whole number of 0 or more.")
            if number < 1 and self.name in FROM_ONE:
                raise UsageError(f"{self.name}={text}: {self.name} must be at least 1.")
            return number
        if self.kind == "share":
            return self._share(word, text)
        if word in self.choices:
            return word
        if self.kind == "text" and self._fits(text.strip()):
            return text.strip()
        free = f", {self.free_text}" if self.free_text else ""
        raise UsageError(f"{self.name}={text}: choose from {', '.join(self.choices)}{free}.")

    def _fits(self, text: str) -> bool:
        """Whether free text may be meant for this axis, or is a choice with a typing error."""
        if self.name == "storage":
            return "/" in text or "\\" in text or text.startswith("~")
        return len(text) > 3 and text.startswith("no-") if self.name == "augment" else bool(text)

    def _share(self, word: str, text: str) -> float:
        """`40`, `40%` and `0.4` are the same; `1` is one percent and `1.0` is all."""
        try:
            number = float(word.removesuffix("%"))
        except ValueError:
            number = -1.0
        share = number if "." in word and number <= 1 and "%" not in word else number / 100
        if not 0 < share <= 1:
            raise UsageError(f"{self.name}={text}: not a part; write percents, as {self.name}=40.")
        return share


AXES: tuple[Axis, ...] = (
    Axis(name="num_workers", kind="int"),
    Axis(name="prefetch_factor", kind="int", needs_workers=True),
    Axis(name="persistent_workers", kind="bool", needs_workers=True),
    Axis(name="pin_memory", kind="bool", needs_accelerator=True),
    Axis(name="in_order", kind="bool", needs_workers=True),
    Axis(
        name="start_method",
        kind="choice",
        choices=("fork", "spawn", "forkserver"),
        needs_workers=True,
    ),
    Axis(
        name="worker_cpus",
        kind="choice",
        choices=("inherited", "all", "apart", "numa"),
        needs_workers=True,
    ),
    Axis(
        name="worker_gc",
        kind="choice",
        choices=("automatic", "frozen", "rarely"),
        needs_workers=True,
    ),
    Axis(name="background", kind="choice", choices=("off", "host", "device"), where="loop"),
    Axis(name="reuse_buffers", kind="bool", needs_workers=True, where="loop"),
    Axis(name="threads", kind="int", where="loop"),
    Axis(name="spdl", kind="bool", needs_workers=True, where="loop"),
    Axis(name="non_blocking", kind="bool", needs_accelerator=True, where="transfer"),
    Axis(name="side_stream", kind="bool", needs_accelerator=True, where="loop"),
    Axis(name="packed", kind="bool", needs_accelerator=True, where="loop"),
    Axis(name="resident", kind="bool", needs_accelerator=True, where="loop"),
    Axis(name="keep_iterator", kind="bool", where="dataset"),
    Axis(name="portion", kind="share", where="dataset", probe="always"),
    Axis(name="cache", kind="bool", where="dataset"),
    Axis(name="batched", kind="bool", where="dataset"),
    Axis(
        name="storage",
        kind="text",
        choices=("original", "cold", "tmpfs"),
        free_text="or a folder on another disk, as /mnt/ssd",
        where="dataset",
        probe="cold",
    ),
    Axis(name="synthetic", kind="bool", where="dataset", probe="always"),
    Axis(
        name="augment",
        kind="text",
        choices=("on", "off", "each"),
        free_text="or no-NAME for one transform, as no-RandomCrop",
        where="dataset",
        probe="always",
    ),
    Axis(
        name="fields",
        kind="text",
        choices=("all", "each"),
        free_text="or the input to keep, as image or 0",
        where="dataset",
        probe="always",
    ),
    Axis(name="uint8", kind="bool", where="dataset"),
    Axis(name="device_decode", kind="bool", needs_accelerator=True, where="dataset"),
    Axis(name="amp", kind="bool", where="model", numerics=True),
    Axis(name="batch_size", kind="int", numerics=True),
    Axis(name="channels_last", kind="bool", where="model", numerics=True),
    Axis(name="cudnn_benchmark", kind="bool", needs_accelerator=True, where="model", numerics=True),
    Axis(name="tf32", kind="bool", needs_accelerator=True, where="model", numerics=True),
    Axis(name="compile", kind="bool", where="model", numerics=True),
    Axis(name="zero_grad_none", kind="bool", where="model", numerics=True),
    Axis(name="checkpoint", kind="bool", where="model", numerics=True),
    Axis(name="fused_optimizer", kind="bool", where="model", numerics=True),
    Axis(
        name="ddp",
        kind="choice",
        choices=("none", "data_parallel", "ddp"),
        where="script",
        numerics=True,
    ),
    Axis(name="dali", kind="bool", where="script", numerics=True),
    Axis(name="num_threads", kind="int", where="model", numerics=True),
    Axis(name="gc", kind="choice", choices=("automatic", "frozen", "manual"), where="model"),
)
AXES_BY_NAME: Mapping[str, Axis] = {axis.name: axis for axis in AXES}
