"""Writes docs/findings.md from the rules themselves: python docs/make_findings.py [--check]."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from loaderdoctor.advice.ideas import CHANGES, FORMAT_CHANGES
from loaderdoctor.facts.step import HIGH_SHARE, MODERATE_SHARE
from loaderdoctor.findings import Kind, Rule, rules
from loaderdoctor.findings.line_names import FORMATS

PAGE = Path(__file__).parent / "findings.md"
PARTS = ("Decides on", "Abstains", "Fooled by")
NEXT = rf"^(?:{'|'.join(PARTS)}): |\Z"

HEAD = f"""\
# Findings

<!-- Written by docs/make_findings.py from the rules' docstrings. Change those, then run it. -->
<!-- fmt: off -->

A finding is one cause, with the figures it rests on. Structure alone is none: `num_workers=0`, a
pageable copy or a missing flag counts only where the step waits for it (*exposed* time: the
accelerator idles). What a part costs comes from ablation where it ran, else from the trace.
Severity is *high* from {HIGH_SHARE:.0%} of the step, *moderate* from {MODERATE_SHARE:.0%}, *low*
(a hint) below, *uncertain* where the interval does not bear out the estimate. A rule abstains where
a fact it needs was not recorded.

What a finding expects of a setting is said only where nothing has tested it, and is marked so.
Where the run tried the setting, the finding says what was measured, be it faster, slower or no
different (`tested` in `report.json`; `refuted` where it is otherwise than expected). Of a sweep it
says whether a gain was confirmed by windows measured after the trial was chosen, or is of the
rounds that rank, in which the best of many looks better than it is (`confirmed`). `analyze` of a
trace that lies in a run folder cites the trials of that run in the same way.

The last six are hints about computing. They are always *low* and never the verdict, and they are
silent while the step waits {HIGH_SHARE:.0%} or more for its batches.
"""


def kind_of(rule: Rule) -> Kind:
    """The kind a rule decides on: rules are named after their kinds."""
    return Kind(rule.__name__.replace("_", "-"))


def parts_of(rule: Rule) -> tuple[str, dict[str, str]]:
    """The docstring's first paragraph, and its parts. Raises ValueError where one is missing."""
    text = inspect.getdoc(rule) or ""
    first, *_ = text.split("\n\n", 1)
    found = {}
    for part in PARTS:
        match = re.search(rf"^{part}: (.+?)(?={NEXT})", text, re.DOTALL | re.MULTILINE)
        if match is None:
            raise ValueError(f"{kind_of(rule).value}: its docstring has no line `{part}:`")
        found[part] = " ".join(match[1].split())
    return " ".join(first.split()), found


def example(title: str, code: str, caution: str | None) -> list[str]:
    """What to change, as lines of the page."""
    lines = ["", f"{title}:", "", "```python", code, "```"]
    return lines if caution is None else [*lines, "", caution]


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    lines += ["| kind | what it says |", "|---|---|"]
    for rule in rules.RULES:
        kind, (first, _) = kind_of(rule).value, parts_of(rule)
        lines.append(f"| [`{kind}`](#{kind}) | {first} |")
    for rule in rules.RULES:
        kind = kind_of(rule)
        first, parts = parts_of(rule)
        lines += ["", f"## {kind.value}", "", first, ""]
        lines += [f"- **{part}:** {parts[part]}" for part in PARTS]
        change = CHANGES.get(kind)
        if change is not None:
            lines += example(change.title, change.example, change.caution)
        if kind is Kind.DATASET_FORMAT_BOUND:
            for form in FORMATS:
                lines += ["", f"### {form.name}", "", f"{form.what[0].upper()}{form.what[1:]}."]
                change = FORMAT_CHANGES[form.name]
                lines += example(change.title, change.example, change.caution)
    lines += ["", "## Where one finding silences another", ""]
    for overrule in rules.OVERRULES:
        losers = ", ".join(f"`{k.value}`" for k in overrule.losers)
        lines.append(f"- `{overrule.winner.value}` over {losers}: {overrule.reason}.")
    decided = {kind_of(rule) for rule in rules.RULES}
    open_kinds = ", ".join(f"`{kind.value}`" for kind in Kind if kind not in decided)
    if open_kinds:
        lines += ["", "## Reserved", "", f"Named, and not decided yet: {open_kinds}."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == page() else f"{PAGE} is out of date")
    PAGE.write_text(page(), encoding="utf-8")
