"""One process drives several GPUs through nn.DataParallel."""

from __future__ import annotations

from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.hints import computing, hint, input_first

# An annotation of every step's forward pass; a window's edge may cut one off.
MIN_FORWARDS_PER_STEP = 0.5


def data_parallel(facts: Facts) -> Finding | None:
    """Replicas by nn.DataParallel: weights go to every GPU anew each step, from one Python thread.

    Decides on: an nn.DataParallel over several devices that was called in the first steps, or
    in a trace its annotation while more than one device computes.
    Abstains: the step waits for its input; neither modules nor annotations were seen.
    Fooled by: a model so large beside its weights' copies that little is lost.
    """
    record, trace = facts.compute, computing(facts)
    n_replicas = record.n_replicas if record is not None else None
    called = trace is not None and trace.n_data_parallel_forwards >= MIN_FORWARDS_PER_STEP
    if n_replicas is None and trace is not None and called:
        n_replicas = trace.n_computing_devices
    if n_replicas is None or n_replicas < 2 or input_first(facts):
        return None
    return hint(
        Kind.DATA_PARALLEL,
        share=None,
        summary=(
            f"nn.DataParallel replicates the model to {n_replicas} GPUs in every step and "
            "launches all their work from one process. DistributedDataParallel keeps a replica "
            "and a process for each GPU and overlaps the exchange of gradients with the backward "
            "pass."
        ),
        evidence={"n_replicas": n_replicas},
        advice="Use DistributedDataParallel with torchrun, one process for each GPU.",
    )
