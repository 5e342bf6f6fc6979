"""What to change by hand for a setting that is no argument of the loader: a sentence each."""

from __future__ import annotations

from collections.abc import Mapping

from loaderdoctor.advice.ideas import CHANGES
from loaderdoctor.findings import Kind
from loaderdoctor.settings import Settings

# What to do for one value of an axis that is no argument of the loader and no copy's; braces stand
# for that value. Off: what the loop does without it.
_ON: Mapping[str, str] = {
    "background": "`BackgroundGenerator(iter(loader), max_prefetch=2)` of the package "
    "prefetch_generator, in place of the loader wherever the loop takes batches of it. Read it to "
    "its end where the loop is left early: a thread that still runs as Python ends may abort it.",
    "worker_cpus": "`os.sched_setaffinity(0, cpus)` in a `worker_init_fn`: that worker's CPUs.",
    "worker_gc": "`gc.freeze()` in a `worker_init_fn`; rarely: `gc.set_threshold(50_000, 20, 50)`.",
    "reuse_buffers": f"{CHANGES[Kind.BATCH_PAGE_FAULTS].idea} The trial measured "
    "loaderdoctor's buffers, each used again once the loop lets go of it: not what yours bring.",
    "threads": "`num_workers=0`, and a ThreadPoolExecutor of {value} threads that makes the "
    "batches in order: `collate_fn([dataset[i] for i in indices])` for each list of "
    "`loader.batch_sampler`.",
    "spdl": "`spdl.dataloader.get_pytorch_dataloader(…, in_order=True)` in place of DataLoader.",
    "side_stream": "Copy the next batch on a separate `torch.cuda.Stream()` while this one "
    "computes, let the computing stream wait for it, and `record_stream` its tensors.",
    "packed": "Let the collate function join the small tensors of a batch into one of bytes, copy "
    "that, and take it apart on the device.",
    "resident": "Collate the whole dataset into one batch on the device, once, and index that "
    "with the lists that the loader's own batch sampler gives.",
    "keep_iterator": "Give the loader a batch sampler that goes on from epoch to epoch, make one "
    "iterator, and take `itertools.islice(batches, n)` of it in each epoch.",
    "cache": "Wrap the dataset in one that keeps a list of its samples.",
    "batched": CHANGES[Kind.OVERHEAD_BOUND_LOADER].idea,
    "uint8": CHANGES[Kind.WIDE_DTYPE_COPY].idea,
    "device_decode": "JPEG files: hand them out (`torchvision.io.read_file`); behind the loader, "
    "decode by `torchvision.io.decode_jpeg(files, device=device)` and call transforms on tensors.",
    "storage": "Copy the data to {value} and give the script that folder.",
    "amp": "Forward pass and loss under `torch.autocast(device.type, dtype=torch.bfloat16)`.",
    "channels_last": "`.to(memory_format=torch.channels_last)` for the model, before the optimizer "
    "is made, and for the images in the loop.",
    "cudnn_benchmark": "`torch.backends.cudnn.benchmark = True`, where shapes are constant.",
    "tf32": '`torch.set_float32_matmul_precision("high")` and '
    "`torch.backends.cudnn.allow_tf32 = True`.",
    "compile": "`model = torch.compile(model)`.",
    "zero_grad_none": "`optimizer.zero_grad(set_to_none=True)`.",
    "checkpoint": "`torch.utils.checkpoint.checkpoint_sequential` around the model's blocks: "
    "activations are made again in the backward pass.",
    "fused_optimizer": "`fused=True` for the optimizer.",
    "ddp": CHANGES[Kind.DATA_PARALLEL].idea,
    "dali": "nvidia.dali's DALIGenericIterator in place of the DataLoader.",
    "num_threads": "`torch.set_num_threads({value})` once, before the loop, or OMP_NUM_THREADS="
    "{value} in the shell that starts the script.",
    "gc=frozen": "`gc.collect()` and `gc.freeze()` once, behind the first step of training.",
    "gc=manual": "`gc.disable()` before the loop, and `gc.collect()` at the end of each epoch.",
}
_OFF: Mapping[str, str] = {
    "cudnn_benchmark": "`torch.backends.cudnn.benchmark = False`.",
    "tf32": '`torch.set_float32_matmul_precision("highest")` and '
    "`torch.backends.cudnn.allow_tf32 = False`.",
    "zero_grad_none": "`optimizer.zero_grad(set_to_none=False)`.",
    "fused_optimizer": "`fused=False` for the optimizer.",
}
_NOT_KEPT = ("original", "cold", "off", "none", "data_parallel")


def axis_ideas(settings: Settings) -> tuple[str, ...]:
    """A sentence for each setting that is no argument; none for what leaves the loop as it is."""
    found = []
    for name, value in settings.changed().items():
        text = _OFF.get(name) if value is False else _ON.get(f"{name}={value}", _ON.get(name))
        if text is not None and value not in _NOT_KEPT:
            place = "/dev/shm" if value == "tmpfs" else value
            found.append(text.format(value=place))
    return tuple(found)
