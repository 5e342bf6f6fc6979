"""Candidates that change where data lies and how it travels: pinned, copied ahead, kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from loaderdoctor import format as fmt
from loaderdoctor.advice import Candidate, Case, CodeAdvice, NotAdvised
from loaderdoctor.advice.fit_transforms import scaled_whole
from loaderdoctor.advice.ideas import CHANGES
from loaderdoctor.advice.routes import fewer_bytes, fits_in_memory
from loaderdoctor.advice.transform_names import batchwise_transforms, random_transforms
from loaderdoctor.advice.worked import batchwise, rows
from loaderdoctor.facts import Facts
from loaderdoctor.facts.step import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.findings import Kind
from loaderdoctor.findings.capacity import by_ablation, dataset_bytes, start_method
from loaderdoctor.findings.exposure import has_accelerator, num_workers
from loaderdoctor.findings.input_parts import (
    floor_ms,
    least_rest_ms,
    least_without_ms,
    making_cost,
    most_saved_ms,
    pace_kept,
)
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings, Value

# What a pinned copy reaches, whatever the bus: PCIe 3 x16 manages about 12 GB/s, the H100 of
# `traces/` 54 GB/s. The slow end, so that a prediction does not promise too much.
PINNED_GB_PER_S = 12.0
# A dataset kept on the device may take this part of its memory, and no more than fits a quick fill.
MAX_RESIDENT_PART = 0.25
MAX_RESIDENT_BYTES = 4 * 1024**3
# Findings that a cheaper sample answers.
MAKING = (
    Kind.LOADER_IN_MAIN_PROCESS,
    Kind.TOO_FEW_WORKERS,
    Kind.CPU_SATURATED_WORKERS,
    Kind.STORAGE_BOUND_WORKERS,
    Kind.DATASET_FORMAT_BOUND,
    Kind.MANY_SMALL_FILES,
    Kind.COLD_STORAGE,
    Kind.GIL_CONTENTION,
    Kind.LOOP_SLOWED_BY_WORKERS,
)

# Findings that whole batches answer: the price of samples one by one, and of stacking them.
_BY_SAMPLE = (Kind.OVERHEAD_BOUND_LOADER, Kind.COLLATE_BOUND)
MIN_PACKED = 2  # copies of a batch, or there is nothing to pack
_BY_ARRAYS = "The dataset is read by its arrays: code of its __getitem__ no longer runs."

# Findings whose cost goes with the bytes of a batch.
_BY_BYTES = (Kind.WIDE_DTYPE_COPY, Kind.PIN_THREAD_BOUND, Kind.BATCH_PAGE_FAULTS)
_PINNED: dict[str, Value] = {"pin_memory": True, "non_blocking": True}
_ONE_MORE_BATCH = "Keeps one more batch in device memory."


def copying(case: Case) -> list[Candidate]:
    """Copies that the step need not wait for: each with what it answers."""
    return [
        *_pinned(case),
        *_non_blocking(case),
        *_side_stream(case),
        *_mapped_elsewhere(case),
        *_mapped_once(case),
    ]


def _pinned(case: Case) -> list[Candidate]:
    """Pinning goes together with non_blocking; a side stream only for what is left exposed."""
    step_ms, exposed_ms = case.facts.step_ms, case.explained_ms(Kind.PAGEABLE_COPY)
    if step_ms is None or exposed_ms is None:
        return []
    left_ms = _pinned_ms(case, Kind.PAGEABLE_COPY, at_most_ms=exposed_ms)
    by_loop = not case.loader.settings.num_workers
    made = case.propose(
        Kind.PAGEABLE_COPY,
        changes=_PINNED,
        predicted_ms=least_without_ms(case.facts, exposed_ms - left_ms, "copy"),
        how=_less_copies(exposed_ms, left_ms),
        caution="Without workers the loop itself pins each batch." if by_loop else None,
    )
    if left_ms >= MODERATE_SHARE * step_ms:
        made += case.propose(
            Kind.PAGEABLE_COPY,
            changes={**_PINNED, "side_stream": True},
            predicted_ms=least_without_ms(case.facts, exposed_ms, "copy"),
            how=f"the step less {fmt.ms(exposed_ms)} of exposed copies, all of them overlapped",
            caution=_ONE_MORE_BATCH,
        )
    return made


def _non_blocking(case: Case) -> list[Candidate]:
    """Pinned copies whose calls wait for them."""
    step_ms, exposed_ms = case.facts.step_ms, case.explained_ms(Kind.BLOCKING_COPY)
    if step_ms is None or exposed_ms is None:
        return []
    left_ms = _pinned_ms(case, Kind.BLOCKING_COPY, at_most_ms=exposed_ms)
    return case.propose(
        Kind.BLOCKING_COPY,
        changes={"non_blocking": True},
        predicted_ms=least_without_ms(case.facts, exposed_ms - left_ms, "copy"),
        how=_less_copies(exposed_ms, left_ms),
    )


def _side_stream(case: Case) -> list[Candidate]:
    """Pinned, non-blocking copies on the stream that computes."""
    step_ms, exposed_ms = case.facts.step_ms, case.explained_ms(Kind.COPY_NOT_OVERLAPPED)
    if step_ms is None or exposed_ms is None:
        return []
    return case.propose(
        Kind.COPY_NOT_OVERLAPPED,
        changes={"side_stream": True},
        predicted_ms=least_without_ms(case.facts, exposed_ms, "copy"),
        how=f"the step less {fmt.ms(exposed_ms)} of exposed copies: the most it can gain",
        caution=_ONE_MORE_BATCH,
    )


def _mapped_elsewhere(case: Case) -> list[Candidate]:
    """Batches that the pin-memory thread maps into memory, instead of the loop's own."""
    step_ms, mapped_ms = case.facts.step_ms, case.explained_ms(Kind.BATCH_PAGE_FAULTS)
    if step_ms is None or not mapped_ms or case.loader.settings.pin_memory:
        return []
    return case.propose(
        Kind.BATCH_PAGE_FAULTS,
        changes=_PINNED,
        predicted_ms=least_without_ms(case.facts, mapped_ms),
        how=f"the step less {fmt.ms(mapped_ms)} of mapping batches, left to the pin-memory thread",
    )


def _mapped_once(case: Case) -> list[Candidate]:
    """Batches in shared memory that stays mapped, of forked workers.

    A trial of ours takes a buffer again once the loop has let go of it, which no few lines do: it
    decides whether the idea is worth its code, and gives that code no figure.
    """
    step_ms, mapped_ms = case.facts.step_ms, case.explained_ms(Kind.BATCH_PAGE_FAULTS)
    loader = case.loader
    forks = start_method(case.facts, loader.settings) in (None, "fork")
    if step_ms is None or not mapped_ms or not loader.settings.num_workers:
        return []
    if loader.kind != "map" or not forks:
        return []
    made = case.propose(
        Kind.BATCH_PAGE_FAULTS,
        changes={"reuse_buffers": True},
        predicted_ms=least_without_ms(case.facts, mapped_ms),
        how=f"the step less the {fmt.ms(mapped_ms)} of mapping batches, at best",
        caution=CHANGES[Kind.BATCH_PAGE_FAULTS].caution,
    )
    return [replace(candidate, in_code=True) for candidate in made]


def _pinned_ms(case: Case, kind: Kind, *, at_most_ms: float) -> float:
    """What a finding's copies would still take, pinned; 0 where their bytes are not known."""
    n_bytes = case.found[kind].evidence.get("bytes_per_step")
    copied_ms = float(n_bytes) / PINNED_GB_PER_S / 1e6 if isinstance(n_bytes, float) else 0.0
    return min(copied_ms, at_most_ms)


def _less_copies(exposed_ms: float, left_ms: float) -> str:
    return (
        f"the step less {fmt.ms(exposed_ms)} of exposed copies, plus {fmt.ms(left_ms)} at "
        f"{PINNED_GB_PER_S:g} GB/s pinned"
    )


def resident(case: Case) -> list[Candidate]:
    """The whole dataset on the device, where it is small and its loader is what costs."""
    facts, loader, found = case.facts, case.loader, case.found
    finding = found.get(Kind.OVERHEAD_BOUND_LOADER) or found.get(Kind.LOADER_IN_MAIN_PROCESS)
    memory = facts.machine.device_memory_bytes if facts.machine is not None else None
    held = dataset_bytes(facts)
    if finding is None or memory is None or held is None or not has_accelerator(facts):
        return []
    if (finding.share or 0.0) < HIGH_SHARE or loader.shapes_vary or loader.kind != "map":
        return []
    if held > min(MAX_RESIDENT_PART * memory, MAX_RESIDENT_BYTES):
        return []
    if loader.randomness or random_transforms(facts):  # it would be drawn once and stay
        return []
    no_copy = facts.ablation.no_copy_ms if facts.ablation is not None else None
    have = loader.settings
    changes: dict[str, Value] = {"resident": True}
    changes |= {"num_workers": 0} if have.num_workers else {}
    changes |= {"pin_memory": False} if have.pin_memory else {}
    changes |= {"non_blocking": False} if have.non_blocking else {}
    changes |= {"side_stream": False} if have.side_stream else {}
    changes |= {"background": "off"} if have.background not in (None, "off") else {}
    return case.propose(
        finding.kind,
        changes=changes,
        predicted_ms=max(no_copy.low, 0.0) if no_copy is not None else least_rest_ms(facts),
        how="the step without its loader and copies (measured)"
        if no_copy is not None
        else "the step without its loader",
        caution=f"Takes {fmt.n_bytes(held)} of device memory. Random augmentation in the dataset "
        "would be frozen: move it to the device.",
    )


def packed(case: Case) -> list[Candidate]:
    """Many small copies as one, of pinned memory.

    One tensor is also what workers hand over and the pin-memory thread pins then, so that nothing
    less than the step without loader and copies is a bound: 4.1 ms were got of 8.4, of which the
    copies were 1.7 (H200, prescription.py).
    """
    step_ms, explained_ms = case.facts.step_ms, case.explained_ms(Kind.MANY_SMALL_COPIES)
    n = len(case.facts.transfers)
    if step_ms is None or explained_ms is None or n < MIN_PACKED:
        return []
    left_ms = explained_ms / n
    how = (
        f"the step less its loader and the {fmt.ms(explained_ms)} of {n} copies, plus one of them, "
        "at best"
    )
    loader_ms = max(case.facts.share("input") or 0.0, 0.0) * step_ms
    predicted_ms = least_without_ms(case.facts, explained_ms - left_ms + loader_ms, "copy")
    no_copy = case.facts.ablation.no_copy_ms if case.facts.ablation is not None else None
    if no_copy is not None:
        predicted_ms, how = max(no_copy.low, 0.0), "the step without its loader and copies, at best"
    return case.propose(
        Kind.MANY_SMALL_COPIES,
        changes={"packed": True, **_PINNED},
        predicted_ms=predicted_ms,
        how=how,
        caution="Batches are on the device as the loop gets them.",
    )


def batched(case: Case) -> list[Candidate]:
    """Whole batches by one indexing call, where samples seem to be rows of what is in memory.

    Whether they are, a trial compares first: what is refused there is said with its reason.
    """
    facts, loader = case.facts, case.loader
    kinds = [kind for kind in _BY_SAMPLE if _one_by_one(case, kind)]
    explained = [ms for kind in kinds if (ms := case.explained_ms(kind)) is not None]
    step_ms, explained_ms = facts.step_ms, max(explained, default=None)
    if not kinds or step_ms is None or explained_ms is None:
        return []
    if loader.kind != "map" or (rows(loader) is None and loader.dataset != "Subset"):
        return []
    return case.propose(
        *kinds,
        changes={"batched": True, "num_workers": 0},
        predicted_ms=least_without_ms(facts, explained_ms),
        how=f"the step less the {fmt.ms(explained_ms)} of samples fetched one by one, at best",
        caution=None if loader.dataset in ("TensorDataset", "Subset") else _BY_ARRAYS,
    )


def _one_by_one(case: Case, kind: Kind) -> bool:
    """Whether this was found, of samples that take what Python takes and of torch's collating."""
    finding = case.found.get(kind)
    if finding is None or case.explained_ms(kind) is None:
        return False
    if kind is Kind.COLLATE_BOUND:
        return finding.evidence.get("collate") == "default_collate"
    return finding.evidence.get("sample_us") is not None


def with_fewer_bytes(case: Case, ways: Iterable[CodeAdvice]) -> tuple[CodeAdvice, ...]:
    """The routes, and bytes that become floats on the device among them where copies cost as well.

    Pictures only, of a dataset whose last transforms make floats of them: what the trial does too.
    """
    facts, loader, kept = case.facts, case.loader, tuple(ways)
    last, step_ms, less = batchwise_transforms(facts), facts.step_ms, fewer_bytes(facts)
    if step_ms is None or not less or not any(kind in case.found for kind in _BY_BYTES):
        return kept
    if loader.kind != "map" or loader.shapes_vary:
        return kept
    own = next((way for way in kept if way.axis == "uint8"), None)
    change = CHANGES[Kind.WIDE_DTYPE_COPY]
    own_ms = (own.bound_ms or 0.0) if own is not None else 0.0
    input_ms = min(_less_input_ms(case, less, own_ms), step_ms - (least_rest_ms(facts) or 0.0))
    bound_ms = min(input_ms + _less_copied_ms(case), step_ms - _least_of_bytes_ms(case))
    wide = CodeAdvice(
        kind=Kind.WIDE_DTYPE_COPY,
        title=change.title,
        idea=batchwise(loader, last, scaled=True),
        code=scaled_whole(facts, last),
        bound_ms=bound_ms,
        predicted_from="ablation" if by_ablation(facts) else "trace",
        axis="uint8",
        evidence=f"At most {fmt.ms(bound_ms)} of the step's {fmt.ms(step_ms)}: "
        f"{fmt.share(1.0 - less)} of the bytes is collated, handed over and copied.",
    )
    return (wide, *(way for way in kept if way is not own))


def _less_input_ms(case: Case, less: float, own_ms: float) -> float:
    """The most of input that is saved by making batches for `own_ms` less, of `less` of the bytes.

    Workers and the pin-memory thread make batches beside one another: a step waits for the slower.
    What the loop's thread maps comes on top, unless that was counted as making batches.
    """
    pinned_ms, mapped_ms = (
        most_saved_ms(case.facts, less * (case.explained_ms(kind) or 0.0), "input")
        for kind in (Kind.PIN_THREAD_BOUND, Kind.BATCH_PAGE_FAULTS)
    )
    if making_cost(case.facts) is None:
        return max(own_ms, pinned_ms, mapped_ms)
    return max(own_ms, pinned_ms) + mapped_ms


def _less_copied_ms(case: Case) -> float:
    """The most of copies that is saved; the finding tells what bytes save."""
    return most_saved_ms(case.facts, case.explained_ms(Kind.WIDE_DTYPE_COPY) or 0.0, "copy")


def _least_of_bytes_ms(case: Case) -> float:
    """The step without its loader and without what is copied less, by whichever is known better."""
    rest_ms = (least_rest_ms(case.facts) or 0.0) - _less_copied_ms(case)
    return max(floor_ms(case.facts, "copy"), rest_ms, 0.0)


def in_code(case: Case, ways: Iterable[CodeAdvice]) -> list[Candidate]:
    """The routes that an axis can try: samples kept in memory, batches scaled as a whole."""
    step_ms = case.facts.step_ms
    if step_ms is None:
        return []
    made = []
    for way in ways:
        slices, narrow = "batched" in way.axes, "uint8" in way.axes
        # Where no finding names the cause, making batches costs the step all the same.
        answered = (*MAKING, *(_BY_SAMPLE if slices else ()), *(_BY_BYTES if narrow else ()))
        kinds = [kind for kind in answered if kind in case.found]
        if not way.axes or way.bound_ms is None:
            continue
        if "cache" in way.axes and why_not_cached(case.facts, case.loader) is not None:
            continue
        made += case.propose(
            *kinds,
            changes={
                **dict.fromkeys(sorted(way.axes), True),
                **({"num_workers": 0} if slices else {}),
            },
            predicted_ms=max(
                # Where copies cost, its bound is beyond the loader's part.
                _least_of_bytes_ms(case)
                if way.kind is Kind.WIDE_DTYPE_COPY
                else least_rest_ms(case.facts) or 0.0,
                step_ms * pace_kept(case.facts) - way.bound_ms,
            ),
            how=f"the step less the {fmt.ms(way.bound_ms)} that this part of a batch costs it",
            caution=way.caution,
        )
    return [replace(candidate, in_code=True) for candidate in made]


def not_advised_in_code(case: Case, why_not: str | None) -> tuple[NotAdvised, ...]:
    """Why samples kept in memory are not tried, where they would answer a finding.

    `why_not`: what speaks against that whatever they take (`fit_code.why_not_kept`).
    """
    if case.loader.kind != "map" or making_cost(case.facts) is None:
        return ()
    if not any(kind in case.found for kind in MAKING):  # nobody would ask
        return ()
    reason = why_not or why_not_cached(case.facts, case.loader)
    if reason is None:
        return ()
    return (NotAdvised(setting="cache", settings=Settings(cache=True), reason=reason),)


def why_not_cached(facts: Facts, loader: LoaderRecord) -> str | None:
    """What speaks against keeping all samples; None where nothing known does."""
    drawn = random_transforms(facts)
    if drawn:
        return (
            f"{', '.join(drawn)} must be drawn again in each epoch: kept with the samples, the "
            "augmentation would be the same in all of them, which changes training."
        )
    fits, held = fits_in_memory(facts), dataset_bytes(facts)
    if fits is None or held is None:
        return "how many bytes all samples take is not known."
    if not fits:
        available = facts.machine.memory_available_bytes if facts.machine is not None else 0
        free = fmt.n_bytes(available or 0)
        n = facts.machine.ranks_here if facts.machine is not None else 1
        each = f" in each of {n} ranks" if n > 1 else ""
        return f"all samples take about {fmt.n_bytes(held)}{each}, and {free} are available."
    if num_workers(facts) and start_method(facts, loader.settings) in ("spawn", "forkserver"):
        return "workers that are not forked would each hold all samples."
    return None
