"""Candidates that change how batches reach the device: pinned, beside the step, or once for all."""

from __future__ import annotations

from collections.abc import Mapping

from loaderdoctor import format as fmt
from loaderdoctor.advice.plan import Candidate
from loaderdoctor.advice.proposal import proposal
from loaderdoctor.advice.safety import dataset_bytes
from loaderdoctor.facts.shares import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import rest_ms
from loaderdoctor.findings.exposure import has_accelerator
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Value

# What a pinned copy reaches, whatever the bus: PCIe 3 x16 manages about 12 GB/s, the H100 of
# `traces/` 54 GB/s. The slow end, so that a prediction does not promise too much.
PINNED_GB_PER_S = 12.0
# A dataset kept on the device may take this part of its memory, and no more than fits a quick fill.
MAX_RESIDENT_PART = 0.25
MAX_RESIDENT_BYTES = 4 * 1024**3

Found = Mapping[Kind, Finding]


def copying(facts: Facts, loader: LoaderRecord, found: Found) -> list[Candidate]:
    """Pinning and non_blocking go together; a side stream only for what is left exposed."""
    step_ms = facts.step_ms
    pageable, blocking = found.get(Kind.PAGEABLE_COPY), found.get(Kind.BLOCKING_COPY)
    same_stream, mapped = found.get(Kind.COPY_NOT_OVERLAPPED), found.get(Kind.BATCH_PAGE_FAULTS)
    if step_ms is None:
        return []
    made: list[Candidate | None] = []
    for finding, changes in (
        (pageable, {"pin_memory": True, "non_blocking": True}),
        (blocking, {"non_blocking": True}),
    ):
        if finding is None or finding.share is None:
            continue
        explained_ms = finding.share * step_ms
        n_bytes = finding.evidence.get("bytes_per_step")
        copied_ms = float(n_bytes) / PINNED_GB_PER_S / 1e6 if isinstance(n_bytes, float) else 0.0
        left_ms = min(copied_ms, explained_ms)
        how = (
            f"the step less {fmt.ms(explained_ms)} of exposed copies, plus {fmt.ms(left_ms)} at "
            f"{PINNED_GB_PER_S:g} GB/s pinned"
        )
        pinned_here = changes.get("pin_memory") and not loader.settings.num_workers
        caution = "Without workers the loop itself pins each batch." if pinned_here else None
        made.append(
            proposal(
                loader,
                facts,
                (finding.kind,),
                dict(changes),
                step_ms - explained_ms + left_ms,
                how,
                caution,
            )
        )
        if left_ms >= MODERATE_SHARE * step_ms and finding is pageable:
            made.append(
                proposal(
                    loader,
                    facts,
                    (finding.kind,),
                    {**changes, "side_stream": True},
                    step_ms - explained_ms,
                    f"the step less {fmt.ms(explained_ms)} of exposed copies, all of them "
                    "overlapped",
                    "Keeps one more batch in device memory.",
                )
            )
    if same_stream is not None and same_stream.share is not None:
        gain_ms = same_stream.share * step_ms
        made.append(
            proposal(
                loader,
                facts,
                (Kind.COPY_NOT_OVERLAPPED,),
                {"side_stream": True},
                step_ms - gain_ms,
                f"the step less {fmt.ms(gain_ms)} of exposed copies: the most it can gain",
                "Keeps one more batch in device memory.",
            )
        )
    if mapped is not None and mapped.share and not loader.settings.pin_memory:
        gain_ms = mapped.share * step_ms
        made.append(
            proposal(
                loader,
                facts,
                (Kind.BATCH_PAGE_FAULTS,),
                {"pin_memory": True, "non_blocking": True},
                step_ms - gain_ms,
                f"the step less {fmt.ms(gain_ms)} of mapping batches, left to the pin-memory "
                "thread",
                None,
            )
        )
    return [c for c in made if c is not None]


def resident(facts: Facts, loader: LoaderRecord, found: Found) -> list[Candidate]:
    """The whole dataset on the device, where it is small and its loader is what costs."""
    finding = found.get(Kind.OVERHEAD_BOUND_LOADER) or found.get(Kind.LOADER_IN_MAIN_PROCESS)
    memory = facts.machine.device_memory_bytes if facts.machine is not None else None
    held = dataset_bytes(facts)
    if finding is None or memory is None or held is None or not has_accelerator(facts):
        return []
    if (finding.share or 0.0) < HIGH_SHARE or loader.shapes_vary or loader.kind != "map":
        return []
    if held > min(MAX_RESIDENT_PART * memory, MAX_RESIDENT_BYTES):
        return []
    ablation, rest = facts.ablation, rest_ms(facts)
    no_copy = ablation.no_copy_ms if ablation is not None else None
    changes: dict[str, Value] = {"resident": True}
    have = loader.settings
    changes |= {"num_workers": 0} if have.num_workers else {}
    changes |= {"pin_memory": False} if have.pin_memory else {}
    changes |= {"non_blocking": False} if have.non_blocking else {}
    changes |= {"side_stream": False} if have.side_stream else {}
    changes |= {"background": "off"} if have.background not in (None, "off") else {}
    made = proposal(
        loader,
        facts,
        (finding.kind,),
        changes,
        no_copy.value if no_copy is not None else rest,
        "the step without its loader and copies (measured)"
        if no_copy is not None
        else "the step without its loader",
        f"Takes {fmt.n_bytes(held)} of device memory. Random augmentation in the dataset would be "
        "frozen: move it to the device.",
    )
    return [made] if made is not None else []
