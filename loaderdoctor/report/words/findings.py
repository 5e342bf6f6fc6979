"""How findings read: which are one cause, in how many words, and the figures behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loaderdoctor import format as fmt
from loaderdoctor.findings.model import Kind
from loaderdoctor.report.model import Finding

# So much of a finding is read at a glance: three lines of 80 columns.
_MOST_LETTERS = 230
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z“`])")
_NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(?:\s?([a-zA-Z%µ]+))?")


def sentences(text: str) -> list[str]:
    """The text cut between its sentences."""
    return _SENTENCE.split(text)


def shortened(text: str, most: int = _MOST_LETTERS) -> str:
    """Whole sentences of it from the first on, one at least, as many as `most` letters hold."""
    kept = ""
    for sentence in sentences(text):
        longer = f"{kept} {sentence}".strip()
        if kept and len(longer) > most:
            break
        kept = longer
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Findings that are about the same time of the same loader: the first says what it is."""

    first: Finding
    aspects: tuple[Finding, ...]


def causes(findings: Sequence[Finding]) -> tuple[Cause, ...]:
    """In the report's order, each with the findings that are the same time seen otherwise."""
    groups: list[list[Finding]] = []
    for finding in findings:
        of = (group for group in groups if group[0].kind == finding.aspect_of)
        group = next(of, None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return tuple(Cause(first=first, aspects=tuple(rest)) for first, *rest in groups)


def share_words(finding: Finding) -> str:
    """`33 % of the step`; of all the time where the finding is about what lies outside."""
    outside = finding.kind == Kind.TIME_OUTSIDE_STEPS.value
    return f"{fmt.share(finding.share)} of {'all the time' if outside else 'the step'}"


def evidence_words(finding: Finding) -> list[str]:
    """The figures behind a finding that its own sentences do not say already.

    report.json has all of them, and those that were not recorded, as null.
    """
    said = f"{finding.summary} {finding.advice or ''}"
    if finding.share is not None:
        said += f" {fmt.share(finding.share)}"
    told = frozenset(_figures(said))
    return [
        fmt.evidence(name, value)
        for name, value in finding.evidence.items()
        if value is not None and not _is_said(name, value, said, told)
    ]


def _is_said(name: str, value: Any, said: str, told: frozenset[tuple[str, str]]) -> bool:
    """Whether a sentence holds this figure."""
    if isinstance(value, str):
        return value.lower() in said.lower()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if f"{name}={value}" in said:
        return True
    shown = fmt.evidence(name, value)
    figure = next(reversed(list(_figures(shown))), None)
    if figure is None:
        return False
    text, unit = figure
    if not unit:  # a count: only next to the word for what is counted
        return any(one == text and word and (word == "of" or word in shown) for one, word in told)
    return any(one == text and word in (unit, "of") for one, word in told)


def _figures(text: str) -> Iterator[tuple[str, str]]:
    """(number, unit or the word behind it) of each figure in a text: `("14.6", "ms")`."""
    for number, word in _NUMBER.findall(text):
        yield number.replace(",", ""), word
