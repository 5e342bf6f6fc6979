"""Biases that the batch norm behind them takes out again."""

from __future__ import annotations

from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.hints import hint, input_first


def bias_before_batchnorm(facts: Facts) -> Finding | None:
    """A convolution or Linear adds a bias that a batch norm in training subtracts at once.

    Decides on: the very tensor that a layer with a bias returned is what a batch norm in
    training was called with, unchanged in between, in the loop's first steps.
    Abstains: modules were not watched (torch.compile at work), or the step waits for its input.
    Fooled by: a layer whose output something else reads as well; there the bias does count.
    """
    record = facts.compute
    if record is None or not record.biased or input_first(facts):
        return None
    n = len(record.biased)
    first = record.biased[0]
    layers = f"{n} layers add a bias" if n > 1 else "One layer adds a bias"
    return hint(
        Kind.BIAS_BEFORE_BATCHNORM,
        share=None,
        summary=(
            f"{layers} that the batch norm behind subtracts again with the batch's mean "
            f"({first}): adding it and summing its gradient is work without effect."
        ),
        evidence={"n_layers": n, "n_batch_norms": record.n_batch_norms, "first": first},
        advice="bias=False in the layer before a batch norm.",
    )
