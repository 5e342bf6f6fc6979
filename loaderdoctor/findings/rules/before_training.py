"""What a script reads before its first training step: statistics, skipped batches, checks."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Finding, Kind, Severity
from loaderdoctor.instrument.wire.records import PassRecord

# Shorter than this nobody waits for it: imports and a first epoch's caches take as long.
MIN_S = 5.0
# It is paid once a run, and how long the run is nobody knows: it is never high, and moderate where
# it takes as long as an epoch of training, or where that is not known, a minute.
MODERATE_S = 60.0

SKIPS = (
    "Start the sampler behind the batches that are done, instead of reading and dropping them: a "
    "sampler that yields its indices from an offset on, or torchdata's StatefulDataLoader, which "
    "saves its place with the checkpoint and goes on from there."
)
READS = (
    "Compute it once, save the result next to the data, and load that in later runs; a few "
    "thousand samples often do as well as all of them."
)
EVALUATES = (
    "If its outputs are used again (features of a frozen model), save them once and load them in "
    "later runs; if it is a check, let it take fewer batches (Lightning: num_sanity_val_steps)."
)


def pass_before_training(facts: Facts) -> Finding | None:
    """Time goes by before training begins, in passes over a loader that train nothing.

    Decides on: seconds of all passes before the first backward pass or optimizer step, against an
    epoch of training; and, for the advice, whether the longest calls a model, and whether training
    went on in the middle of it.
    Abstains: the script does not train, or these passes took less than five seconds.
    Fooled by: training that neither calls backward() nor steps a torch optimizer; a pass that only
    this run has, such as a warm-up of caches that later runs find warm.
    """
    known = [one for one in facts.before_training if one.took_s is not None]
    total_s = sum(one.took_s or 0.0 for one in known)
    if not facts.trains or total_s < MIN_S:
        return None
    longest = max(known, key=lambda one: one.took_s or 0.0)
    step = facts.step
    epoch_s = None
    if step is not None and step.steps_per_epoch is not None:
        epoch_s = step.wall_ms.value * step.steps_per_epoch / 1e3
    as_long = (
        f", as long as {total_s / epoch_s:.1f} epochs of it"
        if epoch_s and epoch_s < total_s
        else ""
    )
    others = ""
    if len(known) > 1:
        others = f" The longest of {len(known)} such places."
    return Finding(
        kind=Kind.PASS_BEFORE_TRAINING,
        severity=(Severity.MODERATE if total_s >= (epoch_s or MODERATE_S) else Severity.LOW),
        share=None,
        summary=(
            f"{fmt.seconds(total_s)} went by before training began{as_long}: "
            f"{described(longest)}.{others}"
        ),
        evidence={
            "total_s": total_s,
            "longest_s": longest.took_s,
            "n_passes": longest.n_passes,
            "n_batches": longest.n_batches,
            "calls_model": longest.calls_model,
            "code": longest.code,
        },
        loader=longest.loader,
        advice=SKIPS if longest.skips else EVALUATES if evaluates(longest) else READS,
    )


def evaluates(one: PassRecord) -> bool:
    """Whether it is for what a model says of the batches, not for the batches."""
    return bool(one.calls_model) or (one.calls_model is None and one.without_grad)


def described(one: PassRecord) -> str:
    """What was read, where, and that it trains nothing."""
    batches = fmt.count(one.n_batches, "batch", "batches")
    if one.skips:
        return f"{batches} of {one.loader} were read and thrown away at {one.site} before it"
    passes = "a pass" if one.n_passes == 1 else f"{one.n_passes:,} passes"
    what = "trains" if one.n_passes == 1 else "train"
    model = ", with a model" if evaluates(one) else ""
    return f"{passes} over {one.loader} at {one.site} that {what} nothing ({batches}{model})"
