"""Samples that are kept are made once: not again for each pass, and not for one that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_record

from loaderdoctor.advice.fit_code import wrapped
from loaderdoctor.advice.fit_wrapping import why_not_made_once
from loaderdoctor.advice.worked import CACHED, sliced
from loaderdoctor.facts import Facts
from tests.advice.printed import SCRIPTS, facts_of


def changed(facts: Facts, what: str) -> Facts:
    assert facts.step is not None
    return replace(facts, step=replace(facts.step, changed=what))


@pytest.mark.parametrize("name", ["each_epoch.py", "inline.py", "helper.py"])
def test_a_loader_that_each_epoch_builds_keeps_no_samples(name: str) -> None:
    facts = facts_of(SCRIPTS / name)
    assert facts.step is not None
    assert wrapped(facts, CACHED) is None
    assert "build it once" in (why_not_made_once(facts, facts.loaders[0]) or "")
    once = replace(facts, step=replace(facts.step, rebuilt=frozenset()))
    assert wrapped(once, CACHED) is not None
    assert why_not_made_once(once, once.loaders[0]) is None


def test_samples_that_the_loop_changes_are_not_kept() -> None:
    facts = facts_of(SCRIPTS / "plain.py")
    assert why_not_made_once(facts, facts.loaders[0]) is None
    assert "`labels` of the dataset" in (
        why_not_made_once(changed(facts, "labels"), facts.loaders[0]) or ""
    )


def test_all_loaders_of_the_step_keep_their_samples_as_the_trial_had_them() -> None:
    facts = facts_of(SCRIPTS / "zipped.py")
    (images,) = facts.loaders
    line = int(images.id.rpartition(":")[2]) + 1
    labels = replace_record(
        images, id=f"zipped.py:{line}", code="labels = DataLoader(dataset, batch_size=8)"
    )
    both = replace(facts, loaders=(images, labels))
    for wrapping in (CACHED, sliced(images)):
        assert wrapping is not None
        code = wrapped(both, wrapping)
        assert code is not None
        name = wrapping.dataset.partition("(")[0]
        assert code.count(f"class {name}(") == 1
        for width in (4, 1):
            assert f"DataLoader({name}(TensorDataset(torch.rand(32, {width})))" in code
        assert f"class {name}(" in code.partition("+ images = DataLoader")[0]
