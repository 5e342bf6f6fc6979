"""Scripts whose workers would run them again."""

from __future__ import annotations

from typing import Any

from loaderdoctor.advice.code import edits_for
from loaderdoctor.facts import Facts
from loaderdoctor.findings import Kind, Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules.starved import main_guard_missing
from loaderdoctor.settings import Settings
from tests.findings.builders import healthy, loader, machine, with_exposed
from tests.findings.case import Case, fires, stays_silent
from tests.findings.input_facts import BY_ITSELF, LOW

GUARD = 'if __name__ == "__main__":\n    train()'


def by_itself(method: str | None = "spawn", guard: str | None = GUARD, **changes: Any) -> Facts:
    own = loader(settings={"num_workers": 0}, safety={"guard_missing": guard})
    return with_exposed(
        input_=0.7,
        loaders=(own,),
        workers=BY_ITSELF,
        machine=machine(start_method=method),
        **changes,
    )


CASES = (
    Case(
        rule=main_guard_missing,
        ill=by_itself(),
        share=0.7,
        severity=Severity.HIGH,
        evidence={"start_method": "spawn", "num_workers": 0},
        says=("started by spawn", 'if __name__ == "__main__"', "RuntimeError"),
        silent={
            "workers are forked": by_itself("fork"),
            "there is a guard": by_itself(guard=None),
            LOW: healthy(
                loaders=by_itself().loaders,
                workers=BY_ITSELF,
                machine=machine(start_method="spawn"),
            ),
        },
        missing={"start method": by_itself(None)},
    ),
)


test_a_rule_fires_with_its_figures = fires(CASES)
test_a_rule_stays_silent_on_look_alikes_and_missing_facts = stays_silent(CASES)


def test_the_guard_comes_first_as_cause_and_with_the_code_of_workers() -> None:
    facts = by_itself()
    assert find(facts)[0].kind is Kind.MAIN_GUARD_MISSING
    guard, call = edits_for(facts, Settings(num_workers=4))
    assert guard.after == GUARD
    assert "num_workers=4" in call.after
    assert all(GUARD not in e.after for e in edits_for(by_itself("fork"), Settings(num_workers=4)))
    assert all(GUARD not in e.after for e in edits_for(facts, Settings(pin_memory=False)))
