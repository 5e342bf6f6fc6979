"""The page of kinds is made from the rules, and is current."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from loaderdoctor.advice import dataset_snippets, loop_snippets
from loaderdoctor.advice.ideas import CHANGES
from loaderdoctor.findings.rules import RULES

SCRIPT = Path(__file__).parents[2] / "docs" / "make_findings.py"
sys.path.insert(0, str(SCRIPT.parent))
make_findings = importlib.import_module("make_findings")
sys.path.remove(str(SCRIPT.parent))


def test_the_page_of_kinds_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_rule_says_what_it_decides_on_when_it_abstains_and_what_fools_it() -> None:
    for rule in RULES:
        text = rule.__doc__ or ""
        for part in ("Decides on:", "Abstains:", "Fooled by:"):
            assert part in text, f"{rule} lacks {part}"


def test_no_part_of_a_rule_ends_in_the_middle_of_a_sentence() -> None:
    for rule in RULES:
        first, parts = make_findings.parts_of(rule)
        for text in (first, *parts.values()):
            assert text.endswith((".", ".)")), f"{rule.__name__}: {text[-60:]}"
        told = sum(len(text.split()) for text in (first, *parts.values()))
        assert told == len((rule.__doc__ or "").split()) - sum(len(x.split()) for x in parts)


def test_every_example_compiles() -> None:
    texts = {**vars(dataset_snippets), **vars(loop_snippets)}
    examples = {
        k: v for k, v in texts.items() if k.isupper() and isinstance(v, str) and k[0] != "_"
    }
    for name, text in examples.items():
        compile(text, name, "exec")
    for kind, change in CHANGES.items():
        compile(change.example, kind.value, "exec")
