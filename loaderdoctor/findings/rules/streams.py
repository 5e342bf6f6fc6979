"""Streams (iterable datasets) that several workers read, each as if it were alone."""

from __future__ import annotations

from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Finding, Kind, Severity


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
        advice="Split the stream in __iter__ by get_worker_info(), or use one worker.",
    )
