"""Streams (iterable datasets) that several workers read alone, and the stream of indices."""

from __future__ import annotations

import math

from loaderdoctor import format as fmt
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import ShardFacts
from loaderdoctor.facts.step import MODERATE_SHARE
from loaderdoctor.findings import EvidenceValue, Finding, Kind, Severity
from loaderdoctor.findings.exposure import input_cost, loader_id
from loaderdoctor.instrument.wire.records import LoaderRecord, StreamRecord

# After this part of an epoch it is told how many workers still had data.
_LATE = 0.75
# Two batches of one label each come by chance where there are few labels; four of at least eight
# samples do not.
MIN_BATCHES_SEEN = 4
_OF_ITER = "in __iter__ by get_worker_info()"


def samples_repeated(facts: Facts) -> Finding | None:
    """Every worker of an iterable dataset reads all of it, so that each sample comes again.

    Decides on: the first batches of all workers hold the same values and the next ones others, and
    no code of the dataset or its worker_init_fn asks which worker it is in.
    Abstains: fewer than two workers, batches that are all alike, or a stream that each worker
    shuffles by itself: its first batches differ.
    Fooled by: samples that are to be repeated, as augmentations drawn elsewhere.
    """
    loader = next((x for x in facts.feeding if x.kind == "iterable"), None)
    n = (loader.settings.num_workers or 0) if loader is not None else 0
    if loader is None or n < 2 or not loader.safety.unsharded_iterable:
        return None
    if loader.n_equal_first is None or loader.n_equal_first != n:
        return None
    return Finding(
        kind=Kind.SAMPLES_REPEATED,
        severity=Severity.HIGH,
        share=None,  # of the step it is none: of an epoch, all but one part in n
        loader=loader.id,
        summary=(
            f"Each of the {n} workers reads the whole stream: their first batches hold the same "
            f"values, so every sample is trained on {n} times an epoch, and an epoch takes {n} "
            "times its steps."
        ),
        evidence={"num_workers": n, "equal_batches": loader.n_equal_first},
        advice=split_by_worker(loader.stream),
    )


def uneven_shards(facts: Facts) -> Finding | None:
    """Some workers come to the end of their shards early, and the rest of an epoch waits for few.

    Decides on: batches of each worker and when it ended, in an epoch seen whole; else the number of
    shards that a library's dataset deals out whole, taken for alike. What it explains is the idle
    part of the workers' time, where the loop waits for them. Without an epoch seen whole it is low
    at most, and overrules nothing.
    Abstains: map-style datasets, no epoch seen whole and the number of shards not known, or
    batches dealt out evenly.
    Fooled by: an epoch in which another program held some of the workers up.
    """
    loader, cost = facts.main_loader, input_cost(facts)
    n = (loader.settings.num_workers or 0) if loader is not None else 0
    if loader is None or cost is None or loader.kind != "iterable" or n < 2:
        return None
    seen = facts.shards
    n_shards = loader.stream.n_shards if loader.stream is not None else None
    if seen is not None and len(seen.batches) == n:
        if max(seen.batches) <= min(seen.batches) + 1:
            return None  # who ended first was only the fastest
        lost, words, evidence = seen.lost_share, _as_seen(seen), _evidence_of(seen)
    elif n_shards is not None and n_shards >= n:
        most = math.ceil(n_shards / n)
        lost = 1.0 - n_shards / (n * most)
        words = (
            f"{n_shards} shards are dealt out whole to {n} workers: {n_shards - n * (most - 1)} of "
            f"them read {most}, the others {most - 1}, and have nothing to do while the last ones "
            "are read, if shards are of one size."
        )
        evidence = {}
    else:
        return None
    part = cost.part(lost * cost.step_ms)
    if part.share < MODERATE_SHARE:
        return None
    return Finding(
        kind=Kind.UNEVEN_SHARDS,
        # Of shards that no epoch was seen of, neither the sizes nor how they are dealt are known.
        severity=part.severity if evidence else Severity.LOW,
        share=part.share,
        loader=loader.id,
        summary=f"{words} The loop waits {cost.of_step}.",
        evidence={
            "num_workers": n,
            "n_shards": n_shards,
            "idle_share_of_workers": lost,
            **evidence,
            **cost.as_input,
        },
        advice=even_shards(loader.stream, n),
    )


def _as_seen(seen: ShardFacts) -> str:
    n, left = len(seen.batches), seen.left_at(_LATE)
    return (
        f"Shards are of unlike size: of {fmt.count(sum(seen.batches), 'batch', 'batches')} of an "
        f"epoch one worker made {max(seen.batches):,} and another {min(seen.batches):,}. The first "
        f"had no more data after {fmt.share(min(seen.ended_s) / seen.epoch_s)} of it, and "
        f"{left} of {n} {fmt.verb(left, 'make')} the last quarter: workers idle "
        f"{fmt.share(seen.lost_share)} of their time."
    )


def _evidence_of(seen: ShardFacts) -> dict[str, EvidenceValue]:
    return {
        "batches_by_worker": tuple(float(n) for n in seen.batches),
        "ended_s_by_worker": seen.ended_s,
        "epoch_s": seen.epoch_s,
        "n_epochs": seen.n_epochs,
    }


def shuffle_collapsed(facts: Facts) -> Finding | None:
    """Each batch holds samples of one label: the data comes in the order in which it was stored.

    Decides on: the labels in the first batches (a one-dimensional tensor of integers that is named
    like labels, or the second of a pair): all alike within each batch, others in other batches.
    Abstains: no such tensor, fewer than four batches seen, or one label in all of them.
    Fooled by: batches that are made of one label each on purpose, as some metric learning is.
    """
    loader = facts.main_loader
    seen = loader.labels if loader is not None else None
    if loader is None or seen is None or seen.n_batches < MIN_BATCHES_SEEN:
        return None
    if seen.n_of_one_label < seen.n_batches or seen.n_labels < 2:
        return None
    stored = loader.kind == "map" and loader.sampler == "SequentialSampler"
    if loader.kind != "iterable" and not stored:
        return None  # a sampler of the user's own chose them
    return Finding(
        kind=Kind.SHUFFLE_COLLAPSED,
        severity=Severity.MODERATE,
        share=None,  # of the step it is none: of what the model learns
        loader=loader.id,
        summary=(
            f"The data is not shuffled: each of the first {seen.n_batches} batches holds one label "
            f"only in {seen.path}, {seen.n_labels} of them in all. "
            + (
                "The loader reads the dataset in its stored order."
                if stored
                else "A worker reads one shard after another, in their stored order."
            )
        ),
        evidence={
            "labels": seen.path,
            "n_batches": seen.n_batches,
            "n_labels": seen.n_labels,
            "num_workers": loader.settings.num_workers,
        },
        advice=_shuffled(loader),
    )


def _shuffled(loader: LoaderRecord) -> str:
    """The line that shuffles it, in its library's own words."""
    if loader.kind == "map":
        return "DataLoader(…, shuffle=True)."
    library = loader.stream.library if loader.stream is not None else None
    return {
        "datasets": "dataset.shuffle(seed=…, buffer_size=10_000), a buffer larger than a shard.",
        "webdataset": "Shuffle shards and samples: WebDataset(urls, shardshuffle=100)"
        ".shuffle(10_000), a buffer larger than a shard.",
        "litdata": "litdata.StreamingDataset(…, shuffle=True).",
        "streaming": "StreamingDataset(…, shuffle=True).",
        None: "Keep a buffer of samples from several shards in __iter__ and draw from it, or "
        "shuffle once when the shards are written.",
    }[library]


def split_by_worker(stream: StreamRecord | None) -> str:
    """So that each worker reads its own part."""
    if stream is not None and stream.library == "webdataset":
        return (
            "Put wds.split_by_worker behind the list of shards, as WebDataset(urls) does by itself "
            "(and nodesplitter=wds.split_by_node where there are several ranks), or use one worker."
        )
    return f"Split the stream {_OF_ITER}, or use one worker."


def even_shards(stream: StreamRecord | None, num_workers: int) -> str:
    """So that workers end at about the same time."""
    if stream is None:
        return (
            f"Deal out samples or small pieces in place of whole shards ({_OF_ITER}), or write "
            f"many shards of one size: several for each of {num_workers} workers."
        )
    several = 8 * num_workers
    return {
        "datasets": f"More shards: dataset.to_iterable_dataset(num_shards={several}) of a "
        f"map-style dataset, or as many files (save_to_disk(path, num_shards={several})); or as "
        "many workers as divide the shards.",
        "webdataset": "More and equal tar files (wds.ShardWriter(…, maxcount=…)), several for each "
        "worker; or shards drawn again and again without an end (WebDataset(urls, "
        "resampled=True) with .with_epoch(n)).",
        "litdata": "Read it with litdata.StreamingDataLoader, which deals out samples, and write "
        "smaller chunks (optimize(…, chunk_bytes=…)).",
        "streaming": "Give StreamingDataset the loader's batch_size, by which it deals samples out "
        "to workers, and a predownload of several batches.",
    }[stream.library]


def more_shards(stream: StreamRecord | None, busy: int) -> str:
    """So that no worker is without one; `busy` had some."""
    as_many = f"or use as many workers as there are shards ({busy})."
    if stream is None:
        return f"Give every worker its own shards (get_worker_info() in __iter__), {as_many}"
    return {
        "datasets": "dataset.to_iterable_dataset(num_shards=64) of a map-style dataset, or more "
        f"files; {as_many}",
        "webdataset": f"More tar files (wds.ShardWriter(…, maxcount=…)); {as_many}",
        "litdata": "Read it with litdata.StreamingDataLoader, and write smaller chunks "
        f"(optimize(…, chunk_bytes=…)); {as_many}",
        "streaming": f"Give StreamingDataset the loader's batch_size; {as_many}",
    }[stream.library]


# Torch's own samplers draw all indices of an epoch at its start, in one call already.
_DRAWING_ALL = frozenset({"RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler"})
# Where the loop leaves its epochs so early that half of them or more are drawn for nothing.
MAX_READ_SHARE = 0.5


def sampler_bound(facts: Facts) -> Finding | None:
    """The sampler, which always runs in the training process, is what the loop waits for.

    Decides on: sampler time per batch, within the exposed input time; and, for the advice, whether
    it draws many more indices than an epoch of the loop reads.
    Abstains: sampler time not recorded.
    Fooled by: a sampler that waits for another rank: that is communication.
    """
    workers, cost, loader = facts.workers, input_cost(facts), facts.main_loader
    if workers is None or cost is None or not workers.sampler_ms:
        return None
    part = cost.part(workers.sampler_ms)
    if part.share < MODERATE_SHARE:
        return None
    name = loader.sampler if loader is not None and loader.sampler else "The sampler"
    drawn, read = _drawn_and_read(facts)
    remedy, advice = (
        "Compute the indices ahead, in one vectorised call per epoch.",
        "Compute all indices of an epoch at once (torch.randperm; weighted ones: "
        "torch.multinomial) and yield from them.",
    )
    if drawn and read:
        remedy = f"It draws {drawn:,} indices for an epoch, of which the loop reads {read:,}."
        advice = f"Draw no more than are read: num_samples={read}."
        if name != "WeightedRandomSampler":  # the others permute all, however few are asked for
            advice = "Go on with the same pass over the loader where the last epoch left it."
    return Finding(
        kind=Kind.SAMPLER_BOUND,
        severity=part.severity,
        share=part.share,
        loader=loader_id(facts),
        summary=(
            f"{name} takes {fmt.ms(workers.sampler_ms)} per batch in the training process, "
            f"{part.of_step}; workers can't take that over. {remedy}"
        ),
        evidence={
            "sampler_ms_per_batch": workers.sampler_ms,
            **cost.as_input,
            "sampler": loader.sampler if loader is not None else None,
            **({"indices_drawn": drawn, "indices_read": read} if drawn and read else {}),
        },
        advice=advice,
    )


def _drawn_and_read(facts: Facts) -> tuple[int, int]:
    """Indices that torch's sampler draws for an epoch and that the loop reads; 0 where most are."""
    step, loader = facts.step, facts.main_loader
    if step is None or loader is None or loader.sampler not in _DRAWING_ALL:
        return 0, 0
    read = (step.steps_per_epoch or 0) * (loader.batch_size or 0)
    drawn = loader.n_indices or 0
    return (drawn, read) if 0 < read <= MAX_READ_SHARE * drawn else (0, 0)
