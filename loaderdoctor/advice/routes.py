"""Ways to cheaper batches that no setting takes: chosen by what was recorded, dearest saving first.

Each route removes some part of making a batch. What that can save at most is the part's share of
the time that making batches costs the step, as ablation measured it; more nobody can promise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from loaderdoctor import format as fmt
from loaderdoctor.advice import CodeAdvice, Making, bare, making_of, worked
from loaderdoctor.advice.axis_ideas import axis_ideas
from loaderdoctor.advice.fit_code import decoded_on_device, wrapped
from loaderdoctor.advice.fit_lines import line_change
from loaderdoctor.advice.fit_transforms import cached_before, scaled_whole
from loaderdoctor.advice.fit_wrapping import IMAGE_FOLDERS
from loaderdoctor.advice.ideas import CHANGES, FORMAT_CHANGES
from loaderdoctor.advice.transform_names import (
    CONVERTING,
    batchwise_transforms,
    first_drawn,
    random_transforms,
    scales_bytes,
    transform_names,
)
from loaderdoctor.advice.worked import dataset_name
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import LineHotspot
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import Kind
from loaderdoctor.findings.capacity import MAX_WAITING_CPU_SHARE, dataset_bytes
from loaderdoctor.findings.exposure import has_accelerator
from loaderdoctor.findings.line_names import conversion, most_share, seen, seen_enough, where
from loaderdoctor.findings.rules.batch_making import LARGE_BATCH_BYTES
from loaderdoctor.findings.rules.copies import BYTES_OF
from loaderdoctor.findings.rules.saturated import MAX_OVERHEAD_SAMPLE_MS
from loaderdoctor.instrument.wire.records import LoaderRecord, TensorRecord
from loaderdoctor.settings import Settings

# Of the memory available; a trial of `cache` keeps to the same (instrument/dataset/cached.py).
MAX_SHARE_OF_MEMORY = 0.40
# What copying a batch takes at the least. No thread of the machines at hand copies faster than 20
# out of memory; batches in a cache, other CPUs and several threads may.
COPYING_GB_PER_S = 100.0
N_IMAGE_AXES = 3  # of a batch of images: at least height and width beside the samples
_DECODES = re.compile(
    r"\bImage\.open\(|imread\(|imdecode\(|decode_(image|jpeg|png)\(|read_image\(|\bopen\("
    r"|default_loader\(|\.load\(|\.convert\("
)
_DECODERS = re.compile(
    r"/PIL/(ImageFile|\w+ImagePlugin|Image)\.py:.*(load|open|decode|draft|convert)"
    r"|/(imageio|cv2|soundfile|librosa|torchaudio|torchcodec|tifffile|pydicom)/"
)


def routes(facts: Facts) -> tuple[CodeAdvice, ...]:
    """What can be done about the dataset itself, the largest saving first.

    Empty where making batches costs the step nothing worth it, or was not recorded.
    """
    making = making_of(facts)
    if making is None:
        return ()
    found = [advice for route in ROUTES if (advice := route(making)) is not None]
    worth = [a for a in found if (a.bound_ms or 0.0) >= MODERATE_SHARE * making.cost.step_ms]
    return tuple(sorted(worth, key=lambda a: -(a.bound_ms or 0.0)))


def one_liners(facts: Facts) -> tuple[CodeAdvice, ...]:
    """A line or two of the dataset's or collate function's code, where they take the time."""
    making = making_of(facts)
    if making is None:
        return ()
    found = []
    for hotspot in sorted(making.workers.lines, key=lambda x: -x.share):
        if making.saved_ms(hotspot.share) < MODERATE_SHARE * making.cost.step_ms:
            continue
        change = line_change(facts, hotspot) if seen_enough((hotspot,)) else None
        if change is None:
            continue
        advice = making.advice(
            title=change.title,
            idea=change.idea,
            code=change.code,
            part=hotspot.share,
            most=most_share(_with_its_values(making, hotspot)),
            evidence=f"{where(hotspot)} is {seen(hotspot)} of making a batch.",
            caution=change.caution,
            replaces=Kind.COLLATE_BOUND
            if hotspot.phase == "collate"
            else Kind.DATASET_FORMAT_BOUND,
        )
        found.append(replace(advice, one_line=True))
    return tuple({advice.code: advice for advice in reversed(found)}.values())[::-1]


def _with_its_values(making: Making, hotspot: LineHotspot) -> tuple[LineHotspot, ...]:
    """The line, and where it converts what a library holds, the others that do: values of a row.

    A frame's columns taken out once were told to bring 2.24x at best, by the line that takes the
    row out, and brought 3.28x: the five lines behind it no longer ask that row for its values.
    """
    found = conversion(making.workers.lines, making.loader)
    together = found.hotspots if found is not None else ()
    at = (hotspot.file, hotspot.line)
    if at not in {(x.file, x.line) for x in together}:
        return (hotspot,)
    return (hotspot, *(x for x in together if (x.file, x.line) != at))


def fewer_bytes(facts: Facts) -> float:
    """Of a batch's bytes, the part that its images, floats now, do not take as uint8.

    0 without an accelerator, where images are bytes already, and where no transform of the last
    ones makes tensors of pictures, so that they may never have been bytes.
    """
    loader = facts.main_loader
    if loader is None or not has_accelerator(facts):
        return 0.0
    last = batchwise_transforms(facts)
    if not CONVERTING & set(last) or not scales_bytes(facts, last):
        return 0.0
    saved = sum(t.n_bytes * (1.0 - 1.0 / BYTES_OF[t.dtype]) for t in _float_images(loader))
    return saved / max(1, _batch_bytes(loader))


def _float_images(loader: LoaderRecord) -> list[TensorRecord]:
    return [t for t in loader.batch if t.dtype in BYTES_OF and len(t.shape) >= N_IMAGE_AXES]


def decoding_share(facts: Facts) -> float:
    """The part of making a batch in which files are opened and decoded, outside Python's lock.

    0 where too few stack samples show it.
    """
    lines = facts.workers.lines if facts.workers is not None else ()
    hotspots = tuple(s for line in lines if (s := _decoding(line)) is not None)
    return sum(x.share for x in hotspots) if seen_enough(hotspots) else 0.0


def fits_in_memory(facts: Facts) -> bool | None:
    """Whether all samples may be kept in host memory; None where a size is not known."""
    held = dataset_bytes(facts)
    available = facts.machine.memory_per_rank if facts.machine is not None else None
    return None if held is None or available is None else held <= MAX_SHARE_OF_MEMORY * available


def _slices(making: Making) -> CodeAdvice | None:
    """All samples as one tensor, batches as slices of it: nothing is left of making a batch."""
    facts, loader = making.facts, making.loader
    if loader.kind != "map" or loader.collate != "default_collate" or loader.shapes_vary:
        return None
    if random_transforms(facts) or loader.dataset == "TensorDataset":  # which is one tensor already
        return None
    if not _gains_beyond_copying(making):
        return None
    own_ms = _batch_bytes(loader) / COPYING_GB_PER_S / 1e6
    found, name = worked.image_columns(facts), dataset_name(loader)
    converts = conversion(making.workers.lines, loader)
    if found is not None and converts is not None and converts.format.name == "pil-round-trip":
        images = found[0][0]
        what = (
            f"{name}.{images.path} ({fmt.n_bytes(images.n_bytes or 0)}) is an array of all images"
        )
        return making.advice(
            title=f"Slice whole batches out of {name}.{images.path}, without PIL between",
            idea=FORMAT_CHANGES["pil-round-trip"].idea,
            code=wrapped(facts, worked.from_array(facts)),
            part=1.0,
            evidence=f"{what}; a sample takes {fmt.ms(making.sample_ms)} on its way through PIL.",
            keeps_samples=True,
            replaces=Kind.DATASET_FORMAT_BOUND,
            own_ms=own_ms,
        )
    held = dataset_bytes(facts)
    if not fits_in_memory(facts) or held is None:
        return None
    return making.advice(
        title=f"Keep all samples as one tensor ({fmt.n_bytes(held)}) and slice batches out of it",
        idea="Make every sample once, collate them all into one batch, and let `__getitems__` "
        "index that.",
        code=wrapped(facts, worked.sliced(loader)),
        part=1.0,
        evidence=f"{loader.n_samples:,} samples of one shape take {_of_memory(facts, held)}. "
        f"A sample takes {fmt.ms(making.sample_ms)} to make, collating a batch "
        f"{fmt.ms(making.workers.collate_ms)}.",
        caution="Each sample is made once: what its dataset draws at random is drawn once.",
        axis="cache+batched",
        keeps_samples=True,
        replaces=Kind.OVERHEAD_BOUND_LOADER,
        own_ms=own_ms,
    )


def _gains_beyond_copying(making: Making) -> bool:
    """Whether slices save more than they cost, in the loop itself, of batches that are large.

    A row that is picked is copied, as one that is stacked is: of 16 samples of 4 MiB slices took
    56 ms, where a worker's collating had taken 58, beside the loop (H200 machine, prescription.py).
    """
    large = (
        _batch_bytes(making.loader) >= LARGE_BATCH_BYTES
    )  # of smaller ones the calls take the time
    left_ms = (making.workers.collate_ms or 0.0) if large else 0.0
    return making.saved_ms(1.0) - left_ms >= MODERATE_SHARE * making.cost.step_ms


def _batch_bytes(loader: LoaderRecord) -> int:
    return sum(tensor.n_bytes for tensor in loader.batch)


def _cache(making: Making) -> CodeAdvice | None:
    """Samples kept as they were first made; random transforms, where there are any, stay."""
    facts, held = making.facts, dataset_bytes(making.facts)
    if making.loader.kind != "map" or not fits_in_memory(facts) or held is None:
        return None
    if making.sample_ms <= MAX_OVERHEAD_SAMPLE_MS:  # taking it out of a list costs as much
        return None
    if making.loader.dataset == "TensorDataset":  # which is in memory already
        return None
    busy = making.workers.cpu_share
    cpu = f", {fmt.share(min(1.0, busy))} of it on the CPU" if busy is not None else ""
    each = f"{fmt.ms(making.sample_ms)} each{cpu}"
    what = f"Making samples is {fmt.share(making.fetch)} of a batch ({each})"
    drawn = random_transforms(facts)
    if not drawn:
        return making.advice(
            title=f"Keep the samples in memory as they are first made ({fmt.n_bytes(held)})",
            idea="Wrap the dataset in one that keeps a list of its samples.",
            code=wrapped(facts, worked.CACHED),
            part=making.fetch,
            evidence=f"{what}; all {making.loader.n_samples:,} take {_of_memory(facts, held)}.",
            axis="cache",
            caution="The first epoch, or the start, pays for making every sample once, and what "
            "its dataset draws at random is drawn once.",
            keeps_samples=True,
        )
    first, names = first_drawn(facts), transform_names(facts)
    if first is None:
        return None
    stays = making.transforms(lambda name: name in names[names.index(first) :])
    return making.advice(
        title=f"Keep what comes before {first} in memory",
        code=cached_before(facts, first),
        idea="Take the random transforms out of the dataset, wrap it in one that keeps a list of "
        "its samples, and call them there each time.",
        part=making.fetch - stays,
        evidence=f"{what}. {', '.join(drawn)} must be drawn again each epoch, so only what comes "
        f"before {first} is kept: pictures as decoded, about {fmt.n_bytes(held)} where they "
        "have the final size.",
    )


def _batchwise(making: Making) -> CodeAdvice | None:
    """Scaling and normalising, once for a batch instead of once for each sample."""
    last = batchwise_transforms(making.facts)
    scaled = scales_bytes(making.facts, last)
    if not last or scaled is None or making.loader.shapes_vary:
        return None
    if making.loader.batch and not _float_images(making.loader):  # of bytes nothing is scaled
        return None
    part = making.transforms(lambda name: name in last)
    beside = fewer_bytes(making.facts) * (1.0 - making.fetch)  # collated as bytes too
    timed = [f"{n} {fmt.ms(cost)}" for n, cost in making.workers.transforms if bare(n) in last]
    return making.advice(
        title=f"{' and '.join(last)} for the whole batch, not for each sample",
        idea=worked.batchwise(making.loader, last, scaled=scaled),
        code=scaled_whole(making.facts, last),
        part=part + beside,
        evidence=f"{', '.join(timed)} a sample: {fmt.share(part)} of a batch.",
        axis="uint8" if scaled else None,
    )


def _device(making: Making) -> CodeAdvice | None:
    """All transforms on the accelerator, where there is one."""
    machine = making.facts.machine
    part = making.transforms(lambda name: True)
    if machine is None or machine.device_name is None or not making.workers.transforms:
        return None
    names = ", ".join(name for name, _ in making.workers.transforms)
    if making.loader.dataset in IMAGE_FOLDERS and making.loader.kind == "map":
        return making.advice(
            title=f"Decode and transform the image files on the {machine.device_name}",
            idea=axis_ideas(Settings(device_decode=True))[0],
            code=decoded_on_device(making.facts),
            part=making.fetch,
            evidence=f"Reading, decoding and {names}: {fmt.share(making.fetch)} of a batch.",
            caution="Changes numerics: pixels differ a little, and crops are drawn in the training "
            "process.",
            axis="device_decode",
            replaces=Kind.CPU_SATURATED_WORKERS,
        )
    return making.advice(
        title=f"Move the transforms onto the {machine.device_name}",
        idea=CHANGES[Kind.CPU_SATURATED_WORKERS].idea,
        part=part,
        evidence=f"{names}: {fmt.share(part)} of a batch.",
        caution="A crop or flip drawn for a batch is the same for all its images.",
        replaces=Kind.CPU_SATURATED_WORKERS,
    )


def _decoded(making: Making) -> CodeAdvice | None:
    """Files decoded once and kept as one array, or packed where reading is what waits."""
    found = conversion(making.workers.lines, making.loader)
    if found is not None and found.format.name == "pil-round-trip":
        return None
    hotspots = tuple(s for hotspot in making.workers.lines if (s := _decoding(hotspot)) is not None)
    if not seen_enough(hotspots):
        return None
    part = min(making.fetch, sum(x.share for x in hotspots))
    most = min(making.fetch, most_share(hotspots))
    on_cpu = making.workers.cpu_share or 1.0
    waits = on_cpu + (making.workers.run_wait_share or 0.0) < MAX_WAITING_CPU_SHARE
    evidence = f"{seen(*hotspots)} of making a batch is opening and decoding files"
    if waits:
        return making.advice(
            title="Pack the samples into a few large files",
            idea=CHANGES[Kind.MANY_SMALL_FILES].idea,
            part=part,
            most=most,
            evidence=f"{evidence}, and the CPU is busy only {fmt.share(on_cpu)} of "
            "the time: it is reading that takes it.",
            replaces=Kind.MANY_SMALL_FILES,
        )
    return making.advice(
        title="Decode once and keep the pixels in one file",
        idea="Decode every file once into one array of bytes on disk (numpy's open_memmap), and "
        "let the dataset index that.",
        part=part,
        most=most,
        evidence=f"{evidence}, on the CPU.{_on_disk(making.loader)}",
        caution="Decode to the size before the first random crop, or its choice is narrower.",
    )


ROUTES: tuple[Callable[[Making], CodeAdvice | None], ...] = (
    _slices,
    _cache,
    _batchwise,
    _device,
    _decoded,
)


def _decoding(hotspot: LineHotspot) -> LineHotspot | None:
    """The stack samples of a line that fell on decoding; None where none did."""
    if hotspot.phase != "fetch":
        return None
    if not hotspot.leaves:
        n_stack_samples = hotspot.n_stack_samples if _DECODES.search(hotspot.code or "") else 0
    else:
        own = hotspot.n_stack_samples if _DECODES.search(hotspot.code or "") else 0
        places = (
            (f"{leaf.file}:{leaf.function}".replace("\\", "/"), leaf.n_stack_samples)
            for leaf in hotspot.leaves
        )
        n_stack_samples = max(own, sum(n for place, n in places if _DECODERS.search(place)))
    return replace(hotspot, n_stack_samples=n_stack_samples, leaves=()) if n_stack_samples else None


def _of_memory(facts: Facts, held: int) -> str:
    assert facts.machine is not None
    assert facts.machine.memory_available_bytes is not None
    n, available = facts.machine.ranks_here, facts.machine.memory_available_bytes
    times = f"{n} times (each rank) " if n > 1 else ""
    return f"{times}{fmt.n_bytes(held)} of {fmt.n_bytes(available)} available"


def _on_disk(loader: LoaderRecord) -> str:
    """What the file takes: one byte for each value of the largest tensor of a batch."""
    largest = max(loader.batch, key=lambda t: t.n_bytes, default=None)
    if largest is None or len(largest.shape) < 2 or not loader.n_samples:
        return ""
    each = 1
    for length in largest.shape[1:]:
        each *= length
    all_bytes = fmt.n_bytes(each * loader.n_samples)
    return f" As bytes, {loader.n_samples:,} of the final size take {all_bytes}."
