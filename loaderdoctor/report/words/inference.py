"""The words of a loop that does not train: a batch instead of a step, and no training."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from loaderdoctor.report.model import Report

# Fields of report.json that hold sentences; names, code and figures stay as they are.
_SENTENCES = frozenset({"summary", "advice", "caution", "reason", "text", "method"})
_WORDS = (
    (r"\b([Aa]|[Ee]ach|[Ee]very|[Pp]er) step\b", r"\1 batch"),
    (r"\btraining (process|thread|loop)\b", r"main \1"),
    (r"A bigger batch changes training: warm the learning rate up\. ?", ""),
    (r"\b(which )?changes training\b", r"\1changes the results"),
    (r"\bahead of training\b", "ahead of time"),
    (r"\bbefore training\b", "beforehand"),
)


def of_inference(report: Report) -> Report:
    """The report of a loop that does not train, its sentences in words that fit that."""
    if report.trains:
        return report
    return msgspec.convert(_reworded(msgspec.to_builtins(report)), Report)


def _reworded(value: Any, *, sentence: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _reworded(one, sentence=key in _SENTENCES) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_reworded(one, sentence=sentence) for one in value]
    if sentence and isinstance(value, str):
        for pattern, words in _WORDS:
            value = re.sub(pattern, words, value)
    return value
