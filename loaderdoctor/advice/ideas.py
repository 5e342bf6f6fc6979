"""What to change in code, by what was found: the idea in a sentence, and an example of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loaderdoctor.advice import dataset_snippets, loop_snippets
from loaderdoctor.findings import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to change in the code for one kind of finding.

    `example` stands for any script: docs/findings.md shows those of findings. A report prints code
    that fits the script at hand, or else `idea`: a sentence or two.
    """

    title: str
    idea: str
    example: str = ""
    caution: str | None = None
    axis: str | None = None  # what tries it, where anything does


_SUMS = (
    "Such a sum is a tensor on the device: call its `.item()` once before NumPy or json gets it."
)
CHANGES: Mapping[Kind, Change] = {
    Kind.OVERHEAD_BOUND_LOADER: Change(
        title="Slice whole batches out of memory instead of fetching sample by sample",
        idea="Give the dataset `__getitems__(indices)` that indexes its tensors once for a "
        "whole batch, and the loader `collate_fn=lambda batch: batch`.",
        axis="batched",
        example=dataset_snippets.SLICING,
    ),
    Kind.WIDE_DTYPE_COPY: Change(
        title="Send uint8 and normalise on the device",
        idea="Let the dataset hand out the 8-bit image, and make floats of it behind "
        "`.to(device)`: `images.float().div_(255).sub_(mean).div_(std)`. A quarter of the "
        "bytes travel.",
        axis="uint8",
        example=dataset_snippets.UINT8,
        caution="Only where the images were 8-bit before the dataset made floats of them.",
    ),
    Kind.ITERATOR_RECREATED: Change(
        title="Make the iterator once per epoch",
        idea="Keep one iterator for an epoch (`batches = iter(loader)` before the loop, "
        "`next(batches)` in it) and make another when it is used up.",
        example=loop_snippets.ITERATOR,
        caution="Steps then go through the whole dataset: each took the first batch of another "
        "pass, without a shuffle always the same.",
    ),
    Kind.THREAD_OVERSUBSCRIPTION: Change(
        title="Give every worker one library thread",
        idea="A `worker_init_fn` that calls `torch.set_num_threads(1)` and, where OpenCV is "
        "used, `cv2.setNumThreads(0)`; NumPy's BLAS reads OMP_NUM_THREADS=1 from the "
        "shell that starts the script.",
        example=loop_snippets.WORKER_THREADS,
    ),
    Kind.IDLE_WORKERS: Change(
        title="Split the stream between the workers",
        idea="In the dataset's `__iter__`, `torch.utils.data.get_worker_info()` tells the "
        "worker's `id` and `num_workers`: let each read every `num_workers`-th shard, "
        "from its own on.",
        example=dataset_snippets.SHARDS,
        caution="Needs at least as many shards as workers.",
    ),
    Kind.SAMPLES_REPEATED: Change(
        title="Split the stream between the workers",
        idea="In the dataset's `__iter__`, `torch.utils.data.get_worker_info()` tells the "
        "worker's `id` and `num_workers`: let each read every `num_workers`-th shard (or sample, "
        "`itertools.islice(samples, id, None, num_workers)`), from its own on.",
        example=dataset_snippets.SHARDS,
        caution="An epoch then has a part of the steps that it has now.",
    ),
    Kind.WORKERS_COPY_DATASET: Change(
        title="Keep the dataset's entries where reading them copies nothing",
        idea="Numbers and strings as arrays (`numpy.array`, `pyarrow.array`), anything else "
        "pickled into one array of bytes with where each entry begins, before the DataLoader is "
        "made.",
        example=dataset_snippets.SHARED_ENTRIES,
        caution="Each entry is made again when it is read: some microseconds, and what the dataset "
        "changes in it is not kept.",
    ),
    Kind.SAMPLER_BOUND: Change(
        title="Compute the indices of an epoch in one call",
        idea="Let the sampler draw an epoch's indices in one call of torch and yield them as a "
        "list (`.tolist()`), in place of one draw for each index.",
        example=dataset_snippets.SAMPLER,
        caution="The example draws a plain shuffle. Keep what your sampler draws, or training "
        "changes: torch.multinomial(weights, n, replacement=True) for weighted draws.",
    ),
    Kind.COLLATE_BOUND: Change(
        title="Do per-sample work once, ahead of training",
        idea="What the collate function repeats for the same sample each epoch can be done "
        "once, ahead of training; leave it stacking and padding.",
        example=dataset_snippets.COLLATE,
    ),
    Kind.WORKERS_SHARE_A_CORE: Change(
        title="Give the workers all CPUs again",
        idea="A `worker_init_fn` that calls `os.sched_setaffinity(0, range(os.cpu_count()))`.",
        axis="worker_cpus",
        example=loop_snippets.AFFINITY,
    ),
    Kind.PIN_INEFFECTIVE: Change(
        title="Teach the batch class to pin itself",
        idea="Give the class of the batch a method `pin_memory(self)` that pins its tensors "
        "and returns `self`: DataLoader calls it.",
        example=loop_snippets.PIN_METHOD,
    ),
    Kind.BATCH_PAGE_FAULTS: Change(
        title="Let the workers write into shared tensors that are used again",
        idea="Make as many shared tensors as there are batches under way, plus two "
        "(`share_memory_()`), and let collate_fn fill them in turns: memory is mapped "
        "once and never freed.",
        axis="reuse_buffers",
        example=f"{loop_snippets.SHARED_BUFFERS}\nloader = Reused(loader)",
        caution="With fork as the start method only. A batch is overwritten once the loop has "
        "taken two more: keep no reference to it.",
    ),
    Kind.MANY_SMALL_COPIES: Change(
        title="Copy one packed tensor instead of many small ones",
        idea="Join the small tensors in collate_fn (`torch.cat` of their `reshape(-1)`), copy "
        "the one, and take it apart on the device with `split` and `view`.",
        axis="packed",
        example=loop_snippets.PACKED,
    ),
    Kind.SYNC_EVERY_STEP: Change(
        title="Keep the loss on the device, read it rarely",
        idea="Add up on the device (`total = total + loss.detach().double()`) and call `.item()` "
        "once in many steps.",
        example=loop_snippets.NO_SYNC,
        caution=_SUMS,
    ),
    Kind.LAUNCH_BOUND: Change(
        title="Launch less: CUDA graphs, fused optimizers, a bigger batch",
        idea='`torch.compile(model, mode="reduce-overhead")` launches many kernels as one CUDA '
        "graph, `fused=True` the optimizer's as one; a bigger batch needs fewer launches a sample.",
        example=loop_snippets.LAUNCHES,
        caution="A bigger batch changes training: warm the learning rate up.",
    ),
    Kind.WORK_BETWEEN_STEPS: Change(
        title="Move the loop's own work into the workers, or do it rarely",
        idea="What prepares a batch can be done where it is made, in the dataset or "
        "collate_fn; logging and saving every n steps.",
        example=dataset_snippets.BETWEEN_STEPS,
    ),
    Kind.CPU_SATURATED_WORKERS: Change(
        title="Move transforms from the workers to the device",
        idea="torchvision.transforms.v2 takes whole batches of uint8 images: call the same "
        "transforms once behind `.to(device)`, and leave the dataset decoding alone.",
        example=dataset_snippets.ON_DEVICE,
        caution="A crop or flip drawn for a batch is the same for all its images.",
    ),
    Kind.MANY_SMALL_FILES: Change(
        title="Pack the samples into a few large files",
        idea="Write the samples into a few large files once (webdataset, one HDF5 file, one "
        "array) and read those in order.",
        example=dataset_snippets.PACK_FILES,
    ),
    Kind.COLD_STORAGE: Change(
        title="Bring the data to fast storage before training",
        idea="Copy the data to a local disk or to /dev/shm before the run, and point the "
        "script there.",
        example=dataset_snippets.WARM_COPY,
        caution="Memory that holds the data is not there for the page cache.",
    ),
    Kind.DATA_PARALLEL: Change(
        title="Train with a process for each GPU",
        idea="Start the script with torchrun, wrap the model in DistributedDataParallel in "
        "place of DataParallel, and give the loader a DistributedSampler.",
        example=loop_snippets.DISTRIBUTED,
        caution="Batch norms then see each GPU's own batch, as they do under DataParallel.",
    ),
    Kind.TF32_OFF: Change(
        title="Let float32 matrix products use TF32",
        idea='`torch.set_float32_matmul_precision("high")`, once, before training.',
        example=loop_snippets.TF32,
        caution="Changes numerics: inputs are rounded to 10 bits of mantissa.",
    ),
    Kind.GRAD_NOT_SET_TO_NONE: Change(
        title="Drop gradients instead of filling them with zeros",
        idea="`optimizer.zero_grad()`: set_to_none=True is the default.",
        example=loop_snippets.ZERO_GRAD,
        caution="Code that reads .grad before the backward pass finds None.",
    ),
    Kind.CUDNN_BENCHMARK_OFF: Change(
        title="Let cuDNN time its algorithms",
        idea="`torch.backends.cudnn.benchmark = True`, once, before training.",
        example=loop_snippets.AUTOTUNER,
        caution="Changes numerics a little, and slows down where shapes vary.",
    ),
    Kind.PADDING_WASTE: Change(
        title="Batch samples of about one length",
        idea="A batch sampler that shuffles, sorts chunks of some hundred batches by length, and "
        "hands out their batches in another order: each pads little.",
        example=dataset_snippets.BY_LENGTH,
        caution="A batch then holds samples of one length, which may be alike in other ways too.",
    ),
    Kind.BIAS_BEFORE_BATCHNORM: Change(
        title="Leave the bias out before a batch norm",
        idea="`bias=False` for the layers that a batch norm follows: it adds a bias itself.",
        example=loop_snippets.NO_BIAS,
        caution="Checkpoints with those biases then need strict=False to load.",
    ),
}

# By the format that was recognised (`Format.name`).
FORMAT_CHANGES: Mapping[str, Change] = {
    "text": Change(
        title="Parse the text once and store arrays",
        idea="Parse the text once, store the numbers as one array (`numpy.save`), and let the "
        'dataset index that (`numpy.load(path, mmap_mode="r")`).',
        example=dataset_snippets.PARSED,
    ),
    "pandas-rows": Change(
        title="Make arrays of the frame's columns once",
        idea="Take the columns out of the frame once (`frame[names].to_numpy()`, in "
        "`__init__`) and index the arrays.",
        example=dataset_snippets.COLUMNS,
    ),
    "h5py": Change(
        title="Read whole batches from the HDF5 file",
        idea="Give the dataset `__getitems__(indices)` that reads the rows of a batch in one "
        "access (h5py wants them ascending), or read the whole array once where it fits.",
        example=dataset_snippets.H5PY,
        caution="Open the file in the worker, at its first batch: forked workers can't share it.",
    ),
    "arrow": Change(
        title="Take arrays from the Arrow columns once",
        idea="Take the columns as arrays once (`column.to_numpy()`, Hugging Face's "
        '`with_format("torch")`) and index those.',
        example=dataset_snippets.ARROW,
    ),
    "pil-round-trip": Change(
        title="Make batches straight from the array, without PIL between",
        idea="Index the array of images for a whole batch, and scale and normalise that as a "
        "tensor.",
        example=dataset_snippets.FROM_ARRAY,
        caution="Random transforms that need PIL images stay as they are: "
        "torchvision.transforms.v2 does most of them on tensors.",
    ),
    "python-lists": Change(
        title="Store arrays instead of Python lists",
        idea="Make one array of all the lists once (`torch.tensor(rows)` in `__init__`) and "
        "index it.",
        example=dataset_snippets.FORMAT,
    ),
}
# Of work between steps that stack samples named, by what it does (`facts.loop_lines.What`).
RARELY = Change(
    title="Do it every n steps",
    idea="Put it under `if step % 100 == 0:`.",
)
AHEAD = Change(
    title="Let the loader's workers do it, ahead of the loop",
    idea="Call it in the dataset or in collate_fn, where workers do it ahead of the loop.",
)
# Where the loop changes what its dataset reads, workers have old copies of it.
AT_ONCE = Change(
    title="Do it for many at once, or beside the loop",
    idea="Write it for many elements at once (several environments, say), or let processes of its "
    "own do it while the loop trains.",
)
WORK_CHANGES: Mapping[str, Change] = {
    **{
        what: Change(
            title=title,
            idea="Keep sums as tensors on the device and call `.item()` once in many steps.",
            caution=_SUMS,
        )
        for what, title in (
            ("item", "Keep sums on the device, read them rarely"),
            ("to-host", "Compute on the device, copy only the result"),
            ("metrics", "Compute metrics on whole tensors, or rarely"),
        )
    },
    "table": Change(
        title="Make arrays of the table's columns once",
        idea="Take the columns out of the frame once "
        "(`torch.from_numpy(frame[names].to_numpy())`) and index the tensor.",
    ),
    "deepcopy": Change(
        title="Copy only when something is to be kept",
        idea="Copy only when the score is the best so far, and only the tensors: `{k: "
        "v.detach().clone() for k, v in model.state_dict().items()}`.",
    ),
    "save": Change(
        title="Save rarely, in the background",
        idea="Save every n steps; copy the state to host memory and let a thread write it.",
    ),
    "plot": Change(
        title="Keep the values, draw once an epoch",
        idea="Append `loss.detach()` to a list, and draw once an epoch.",
    ),
    "elements": Change(
        title="Work on whole batches in place of single elements",
        idea="Write it as one operation on the whole batch, without a Python loop over its "
        "elements.",
    ),
    **dict.fromkeys(("print", "tracking", "files", "network", "process"), RARELY),
    **dict.fromkeys(("image", "text", "numpy", "library"), AHEAD),
}
# By what lies outside the steps.
OUTSIDE_CHANGES: Mapping[str, Change] = {
    "validation": Change(
        title="Validate less often, and faster",
        idea="Validate after more steps, under torch.no_grad(), with a larger batch and with "
        "workers that are kept (`persistent_workers=True`).",
        caution="Fewer validations find the best checkpoint, or that training went wrong, later.",
    ),
    "saving": Change(
        title="Save less often, or while training goes on",
        idea="Save every n steps; copy the state to host memory and let a thread write it.",
        caution="The copy needs host memory for all that is saved.",
    ),
}
DRAWN_AS_READ = Change(
    title="Draw only the indices that an epoch reads",
    idea="WeightedRandomSampler, and RandomSampler with replacement=True, take `num_samples`: as "
    "many as the loop reads before it leaves the epoch; or go on with the same pass "
    "(`batches = iter(loader)`) in the next.",
    caution="With replacement a sample may come twice within an epoch.",
)
STREAMED_BATCHES = Change(
    title="Let the stream yield whole batches",
    idea="Let `__iter__` yield whole batches, indexing its tensors once for each, and give the "
    "loader `batch_size=None`.",
)
KEPT_BATCHES = Change(
    title="Collate once, and keep the batches",
    idea="`batches = list(loader)` once, and go through the list in another order in each epoch.",
    caution="The same samples stay together in every epoch, random transforms are drawn once, and "
    "memory holds all batches.",
)
FEWER_BYTES = Change(
    title="Hand over half the bytes, and widen them behind the copy",
    idea="Let the dataset hand out `x.half()` (or uint8 where the data is 8-bit), and call "
    "`.float()` behind `.to(device)`.",
    caution="float16 keeps three digits, up to 65,504; uint8 loses nothing of 8-bit data.",
)
