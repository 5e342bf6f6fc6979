"""What a setting does to what is trained, where batches or numerics do not stay what they are."""

from __future__ import annotations

from loaderdoctor.advice.candidates import CodeAdvice
from loaderdoctor.advice.ideas import KEPT_BATCHES
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Kind
from loaderdoctor.setting_words import FEWER_PARAMETERS, NUMERICS_CHANGE, PIXELS_DIFFER
from loaderdoctor.settings import AXES_BY_NAME, Value

# By the finding that code answers.
_BY_CODE = {
    Kind.TF32_OFF: NUMERICS_CHANGE,
    Kind.CUDNN_BENCHMARK_OFF: NUMERICS_CHANGE,
    Kind.PADDING_WASTE: "batches hold samples of one length",
    Kind.BIAS_BEFORE_BATCHNORM: FEWER_PARAMETERS,
}


def trains_by_code(advice: CodeAdvice) -> str | None:
    """The same of a change of code."""
    if advice.axis == "device_decode":
        return PIXELS_DIFFER
    if advice.title == KEPT_BATCHES.title:
        return "the same samples stay together, and batches come in another order"
    return _BY_CODE.get(advice.kind) if advice.kind is not None else None


def changes_training(facts: Facts, name: str, value: Value) -> str | None:
    """In words, to be said with the advice and expected of its proof; None: training is the same.

    Random draws in other processes count as the same: a proof fixes them.
    """
    loader = facts.main_loader
    if name == "device_decode" and value:
        return PIXELS_DIFFER
    if name == "in_order" and value is False:
        return "batches come in another order"
    if name == "batch_size":
        return "batches have another size"
    if name == "num_workers" and loader is not None and loader.kind == "iterable":
        own, wanted = loader.settings.num_workers or 0, int(value or 0)
        if own != wanted and max(own, wanted) > 1:
            return "the stream is dealt to the workers: the same samples, in other batches"
    return NUMERICS_CHANGE if AXES_BY_NAME[name].numerics and name != "num_threads" else None
