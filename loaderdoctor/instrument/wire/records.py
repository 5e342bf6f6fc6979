"""What messages are made of: the loop as the measuring process found it, and what a window counted.

All `_ns` times are CLOCK_MONOTONIC (time.perf_counter_ns) of the measuring machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from loaderdoctor.settings import Settings


class TensorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor of a batch, as the loop receives it."""

    path: str  # where in the batch: "[0]", "['image']", ".pixel_values"
    shape: tuple[int, ...]
    dtype: str  # "float32"
    n_bytes: int
    pinned: bool = False
    device: str = "cpu"


class TransferRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host-to-device call of the loop's own, as seen in a normal step."""

    call: Literal["to", "cuda", "copy_"]
    site: str  # "train.py:57"
    code: str | None  # the source line, stripped
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int
    pinned: bool
    non_blocking: bool
    path: str | None = None  # the tensor of the batch that is copied as it is, else None


class ComputeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the loop computes, as seen in a few of its first steps."""

    n_steps: int  # watched
    compute_major: int | None = None  # CUDA compute capability of the training device
    n_replicas: int | None = None  # devices of the nn.DataParallel that is called, where one is
    # Layers in order of their calls whose bias is taken out again: "features.0 -> features.1".
    biased: tuple[str, ...] = ()
    n_batch_norms: int = 0  # in training, called in a step
    n_zero_fills: int = 0  # calls of zero_grad(set_to_none=False) in these steps
    zero_fill_site: str | None = None  # "train.py:57"
    zero_fill_code: str | None = None


class StoreRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attribute of a dataset that holds an entry for each sample."""

    path: str  # "data", "dataset.data": from the loader's dataset
    kind: Literal["tensor", "array", "list", "frame", "h5py", "arrow"]
    shape: tuple[int, ...] = ()
    dtype: str = ""  # "uint8"
    n_bytes: int | None = None
    entry: str = ""  # of a list, what the first entry is: "list of 784 int", "str"


class ContainerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attribute of a dataset that holds many Python objects, which forked workers copy."""

    path: str  # "samples", "dataset.samples": from the loader's dataset
    kind: str  # "list", "dict", …
    n: int  # entries
    n_bytes: int  # what a worker that has read all of them has copied
    entry: str = ""  # what one is: "str", "tuple of str, int"
    n_objects: int = 1  # of its own that an entry is made of: as many pages may be copied for it


class LabelsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What looks like labels, in the first batches of a loader."""

    path: str  # "[1]", "['label']"
    n_batches: int  # looked at
    n_of_one_label: int  # of them, those whose samples all have the same
    n_labels: int  # different ones in these


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dataset of a library that streams shards."""

    library: Literal["datasets", "webdataset", "litdata", "streaming"]
    n_shards: int | None = None  # where a worker reads whole ones; None: not so, or not known
    splits: bool = True  # whether workers share them


class Normalisation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a dataset's Normalize takes off and divides by, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class SafetyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What speaks against changing the workers of a loader; None = not checked."""

    pickles: bool | None = None
    pickle_error: str | None = None
    cuda_tensors: bool | None = None  # dataset holds or returned CUDA tensors
    unsharded_iterable: bool | None = None
    open_handles: tuple[str, ...] = ()  # attributes of the dataset that hold open files
    one_pass: bool = False  # can't be re-opened without losing data (iterable, stateful sampler)
    one_pass_reason: str | None = None
    guard_missing: str | None = None  # the main guard with what of the script belongs under it
    pickled_bytes: int = 0  # what each spawned worker would hold of the dataset; 0: not known
    shared_bytes: int = 0  # of CPU tensors, which spawn moves into /dev/shm, once for all
    changed: str | None = None  # what of the dataset the loop changes between its passes: "y"
    changed_while_read: str | None = None  # and between two fetches: a replay buffer


class PaddingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cells of a batch that only fill it up to its longest sample, as counted in some batches."""

    path: str  # the tensor with most cells: "['input_ids']"
    share: float  # of its cells, 0…1
    n_batches: int
    one_length: bool = False  # all batches had one length: padded to a fixed one


class ScriptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The script as it was started, and the user's files as they were then."""

    given: str | None = None  # the path that was typed; None: with -m
    module: str | None = None
    args: tuple[str, ...] = ()
    n_added_args: int = 0  # the first of them, which the user did not type: a recipe's
    n_ranks: int = 1  # processes that run it as one job
    cwd: str = ""  # where it was started
    sources: dict[str, str] = {}  # text by path, the main script first
    launched: bool = False  # by torch's launcher, which sets RANK and its kin


class LoaderRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A DataLoader (or another source of batches) seen in the run."""

    id: str  # "train.py:41": where it was built; "#2" appended where one line builds several
    role: Literal["train", "other"]  # fetched within the training step, or not
    beside: bool = False  # its batches join the steps that another training loader's tell
    code: str | None = None  # source line(s) of the construction
    # File and line of the user's calls through which it was reached, innermost first.
    callers: tuple[tuple[str, int], ...] = ()
    loop: str | None = None  # "train.py:57": where the loop last began to read it
    library: str | None = None  # what built it, where the user's code did not ("transformers")
    settings: Settings = Settings()
    kind: Literal["map", "iterable", "foreign"] = "map"
    dataset: str = ""  # class name
    n_samples: int | None = None  # len(dataset)
    batch_size: int | None = None
    steps_per_epoch: int | None = None  # len(loader), or the length observed
    sampler: str = ""
    n_indices: int | None = None  # len(sampler): what it draws for an epoch
    collate: str = ""
    collate_library: str | None = None  # the package whose code it is; None: the user's own
    has_init: bool = False  # a worker_init_fn, of whoever's
    batch: tuple[TensorRecord, ...] = ()
    batch_type: str = ""
    # A list or a dict of them holds entries that are no tensors: names, numbers, lists.
    holds_others: bool = False
    # Of its first batches, those that hold the same as the first; None: all seen, or not known.
    n_equal_first: int | None = None
    shapes_vary: bool = False
    padding: PaddingRecord | None = None  # None: none was seen
    in_background: bool = False  # fetched on another thread than the one that trains
    augmentations: tuple[str, ...] = ()  # transforms of a Compose that may be left out, by name
    randomness: tuple[str, ...] = ()  # functions of the dataset's code that draw at random
    stores: tuple[StoreRecord, ...] = ()  # what samples are made from, as far as known
    labels: LabelsRecord | None = None  # None: nothing looks like them
    stream: StreamRecord | None = None  # None: of no library that is known
    containers: tuple[ContainerRecord, ...] = ()  # of Python objects, largest first
    # Kinds of the file systems its paths lie on ("nfs4"), and loaded clients of object stores.
    file_systems: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    normalisation: Normalisation | None = None  # of the one Normalize among the transforms
    safety: SafetyRecord = SafetyRecord()

    @property
    def call_index(self) -> int:
        """Which of the line's calls built it, from 0."""
        suffix = self.id.rpartition("#")[2] if "#" in self.id else "1"
        return int(suffix) - 1 if suffix.isdigit() else 0


class PassRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Passes over one loader at one place before training began: they train nothing."""

    loader: str  # LoaderRecord.id
    site: str  # "train.py:28": where the loop reads it
    n_batches: int  # of all these passes
    took_s: float | None = None  # in all; None: windows were measured in them meanwhile
    n_passes: int = 1
    code: str | None = None
    calls_model: bool | None = None  # a module with parameters is called; None: not looked at
    without_grad: bool = False  # its batches are fetched with gradients switched off
    skips: bool = False  # training goes on in the same pass: these batches are thrown away


def main_loader(loaders: Iterable[LoaderRecord]) -> LoaderRecord | None:
    """That whose batches are the steps; None where none was seen."""
    return next((x for x in loaders if x.role == "train" and not x.beside), None)


# Whose malloc serves the process; glibc's as it comes, or told by MALLOC_ variables or tunables.
Allocator = Literal["glibc", "glibc-tuned", "other"]


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The measuring process's own surroundings."""

    torch: str
    python: str
    platform: str
    device_name: str | None
    device_memory_bytes: int | None
    cuda: str | None
    usable_cpus: float
    n_threads: int  # torch.get_num_threads()
    memory_available_bytes: int | None
    shm_free_bytes: int | None
    open_files_limit: int | None
    start_method: str
    host: str
    rank: int | None = None
    n_ranks: int | None = None
    cudnn_benchmark: bool | None = None
    tf32: bool | None = None
    swap_used_bytes: int | None = None
    allocator: Allocator | None = None  # None: neither glibc's nor one known by name
    fault_us: float | None = None  # a page fault of anonymous memory, CPU time; None: not timed
    n_local_ranks: int | None = None  # of the job on this machine, this one included
    cpu_bf16: bool | None = None  # whether the CPU computes bfloat16 itself; None: torch won't say


class BoundaryRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One epoch boundary: what stands between the last step of an epoch and steady steps again."""

    loader: str
    create_ns: int  # DataLoader.__iter__: workers started here
    first_wait_ns: int  # first __next__ of the new iterator
    teardown_ns: int  # exhausted __next__ or dropped iterator: worker shutdown
    at_ns: int  # when the creation began
    first: bool = False  # the first iterator of the run: caches cold, imports included
    rebuilt: bool = False  # of a DataLoader object built since the iterator before
    # What of the dataset the loop changed since the pass before ("y"); None: nothing was seen.
    changed: str | None = None


class OutsideRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What took time outside the training steps, all of one place: another loader's passes, saving.

    `n` and the steps count since the loop was watched, whatever was measured meanwhile; times are
    of those of `n_timed`, while neither a profiler nor a trial changed what they take.
    """

    what: Literal["pass", "save"]
    site: str  # LoaderRecord.id; where saving is called
    n: int
    n_visits: int  # steps of the loop behind which it came: two passes in a row are one visit
    first_step: int  # steps of the loop before its first and its last visit
    last_step: int
    n_at_epoch_end: int = 0  # of `n`, where an epoch of the loader that feeds the step ended
    n_timed: int = 0
    timed_ns: int = 0
    first_ns: int = 0  # of it, the first one: it pays for cold caches too
    wait_ns: int = 0  # of it, getting batches: the iterator's creation and `__next__`
    n_batches: int = 0  # of those timed
    n_with_grad: int = 0  # of these, fetched while gradients were enabled
    n_worked: int = 0  # of those, followed by a backward pass or an optimizer's step
    n_stepped: int = 0  # of those, followed by an optimizer's step before the next batch

    @property
    def works(self) -> bool:
        """Whether most batches of these passes are followed by a backward pass or a step.

        One that the loop leaves early may be followed by work on the next batch of another loader.
        """
        return 2 * self.n_worked > self.n_batches

    @property
    def trains(self) -> bool:
        """Whether these passes are training, of batches that are not the step's."""
        return self.works and self.n_stepped > 0


class WallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the loop's time went besides its steps, since the loop was watched; host times.

    A *crossing* is the time from one step boundary to the next that holds a step and something
    else; a *gap* is the time from an epoch's end to the first fetch of the next, and holds no step.
    The sums are of those with the loop's own batches and no profiler.
    """

    n_steps: int  # of the loop so far
    n_epochs: int = 0  # that ended, whatever was measured meanwhile
    n_crossings: int = 0
    crossings_ns: int = 0
    crossings_loader_ns: int = 0  # of it, iterators of the step's loaders: made and torn down
    crossings_known_ns: int = 0  # of it, in `outside`
    n_gaps: int = 0
    gaps_ns: int = 0
    gaps_loader_ns: int = 0
    gaps_known_ns: int = 0
    # Every step holds some of it: steps are then timed with it, and what it takes is in them.
    in_steps: bool = False
    outside: tuple[OutsideRecord, ...] = ()


class SubnormalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Of the tensors that the loop trains, those kinds that hold such numbers."""

    where: Literal["parameters", "gradients", "optimizer state"]  # the kind that has most
    share: float  # of the values of that kind that were looked at, 0…1
    n_looked_at: int
    slowdown: float  # one multiplication of them / the same of normal numbers, timed here
