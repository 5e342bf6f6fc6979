"""One-line remedies: written into the script, and the same batches come of it."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loaderdoctor.advice.fit_lines import line_change
from loaderdoctor.advice.prescription import prescribe
from loaderdoctor.advice.routes import one_liners
from loaderdoctor.advice.source import unknown_names
from loaderdoctor.diagnosis.prescribe import prescribed_rows
from loaderdoctor.estimate import binomial_interval
from loaderdoctor.facts import Facts
from loaderdoctor.facts.host import Leaf, LineHotspot
from loaderdoctor.findings.rules import find
from loaderdoctor.instrument.wire.records import StoreRecord
from tests.advice.printed import SCRIPTS, applied, blocks, facts_of, marked, printed
from tests.findings.builders import line, workers

LISTS = {"stores": (StoreRecord(path="rows", kind="list", entry="list of 4 float"),)}
FIXED = {
    "arrays": ("collate", {}, "Stack the arrays", "torch.tensor(np.stack(signals))"),
    "frame": ("fetch", {}, "columns out of the frame", "self.column_label[index]"),
    "frame_values": ("fetch", {}, "columns out of the frame", "self.values[i].copy()"),
    "deep": ("fetch", {}, "Copy the sample", "copy.copy(self.graphs[i])"),
    "trainer": ("fetch", LISTS, "one tensor of all the lists", "self.rows_as_tensor[index]"),
}


def starved(path: Path, phase: Any, loader: dict[str, Any], text: str | None = None) -> Facts:
    """The script, whose hot line takes most of making a batch."""
    at = marked(text or path.read_text(), "hot line")
    assert at is not None
    hot = line(file=str(path), line=at, phase=phase, code="x", share=0.9)
    made = workers(
        n_workers=0, batch_ms=40.0, fetch_ms=38.0, collate_ms=2.0, cores=(), lines=(hot,)
    )
    return facts_of(path, text=text, loader=loader, workers=made)


def output(text: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(text, "script", "exec"), {"__name__": "__main__"})  # the tests' own
    return said.getvalue()


@pytest.mark.parametrize("name", FIXED)
def test_a_hot_line_is_made_cheap_and_gives_the_same(name: str) -> None:
    phase, loader, title, written = FIXED[name]
    path = SCRIPTS / f"{name}.py"
    text, facts = path.read_text(), starved(path, phase, loader)
    (hotspot,) = facts.workers.lines if facts.workers is not None else ()
    change = line_change(facts, hotspot)
    assert change is not None and title in change.title
    rows = prescribed_rows(facts, prescribe(facts, find(facts)), None)
    assert title in rows[0].setting, [r.setting for r in rows]  # before any setting
    found = blocks(printed(rows[:1]))
    after = applied(text, found)
    assert written in after
    assert unknown_names(after) <= unknown_names(text)
    assert output(after) == output(text)


def test_what_a_frames_columns_save_at_best_counts_the_lines_that_take_values_of_its_rows() -> None:
    """14 of 21 stack samples take the row out; 4 ask it for values: nearly all may fall away."""
    path = SCRIPTS / "frame.py"
    at = marked(path.read_text(), "hot line")
    assert at is not None
    pandas = (Leaf(file="/v/site-packages/pandas/series.py", function="get", n_stack_samples=4),)

    def seen(*lines: LineHotspot) -> float:
        made = workers(
            n_workers=0, batch_ms=40.0, fetch_ms=38.0, collate_ms=2.0, cores=(), lines=lines
        )
        found = one_liners(facts_of(path, loader={}, workers=made))
        assert len(found) == 1
        return found[0].bound_ms or 0.0

    of = {"file": str(path), "phase": "fetch", "code": "x", "of_stack_samples": 21}
    row = line(**of, line=at, n_stack_samples=14, leaves=(replace(pandas[0], n_stack_samples=14),))
    values = line(**of, line=at + 1, n_stack_samples=4, leaves=pandas)
    other = line(**of, line=at + 1, n_stack_samples=4, leaves=())
    alone, more = seen(row, other), seen(row, values)
    assert more > 1.1 * alone
    high = binomial_interval(14, 21)[1], binomial_interval(18, 21)[1]
    assert more / alone == pytest.approx(high[1] / high[0], rel=0.02)


FEATURES = 'row[self.features].to_numpy("float32")'


@pytest.mark.parametrize(
    ("taken", "before", "after"),
    [
        ("row[1:].to_numpy()", "", "self.frame.iloc[:, 1:].to_numpy("),
        ("row[:-1].to_numpy()", "", "self.frame.iloc[:, :-1].to_numpy("),
        ('row["a":"b"].to_numpy()', "", None),
        ("row[: self.n].to_numpy()", "", None),
        ('row[["label"]].to_numpy()', "", "self.frame.loc[:, ['label']].to_numpy("),
        (FEATURES, "index = index % 3", None),
        (FEATURES, "row = self.frame.iloc[index]", None),
        ("row[columns].to_numpy()", "columns = self.features", None),
    ],
)
def test_what_is_taken_of_a_row_is_taken_of_that_row(
    taken: str, before: str, after: str | None
) -> None:
    path = SCRIPTS / "frame.py"
    text = path.read_text()
    assert FEATURES in text
    text = text.replace(FEATURES, taken).replace("to_numpy()", 'to_numpy("float32")')
    text = text.replace("= features\n", "= features\n        self.n = columns = 2\n")
    text = text.replace("Linear(2,", "Linear(len(loader.dataset[0][0]),")
    if before:
        hot = "  # hot line\n"
        text = text.replace(hot, f"{hot}        {before}\n")
    facts = starved(path, "fetch", {}, text)
    (hotspot,) = facts.workers.lines if facts.workers is not None else ()
    change = line_change(facts, hotspot)
    if after is None:
        assert change is None, change
        return
    assert change is not None
    made = applied(text, blocks(change.code))
    assert after in made and output(made) == output(text)


UNLIKE = {
    "no array": ("arrays", "np.sin(np.arange(64) * i).astype(np.float32)", "[0.5] * 64"),
    "computed": ("arrays", "torch.tensor(signals)", "torch.tensor(list(map(list, signals)))"),
    "row kept": ("frame", 'int(row["label"])', "int(row.sum())"),
    "other frame": ("frame", "self.frame = frame", "self.load(frame)"),
    "index computed": ("frame", "self.frame.iloc[index]", "self.frame.iloc[index % 2]"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_may_be_something_else_is_left_alone(name: str) -> None:
    script, old, new = UNLIKE[name]
    path = SCRIPTS / f"{script}.py"
    text = path.read_text()
    assert old in text
    facts = starved(path, FIXED[script][0], {}, text.replace(old, new))
    (hotspot,) = facts.workers.lines if facts.workers is not None else ()
    change = line_change(facts, hotspot)
    stacked = "signals" in old or "np.sin" in old
    assert change is None or (stacked and "np.stack(signals)" not in change.code), change


def test_lists_of_unequal_length_are_no_tensor() -> None:
    path = SCRIPTS / "trainer.py"
    facts = starved(path, "fetch", {**LISTS, "shapes_vary": True})
    (hotspot,) = facts.workers.lines if facts.workers is not None else ()
    assert line_change(facts, hotspot) is None
    assert line_change(facts, replace(hotspot, line=1)) is None


def test_without_the_files_nothing_is_written() -> None:
    facts = starved(SCRIPTS / "arrays.py", "collate", {})
    (hotspot,) = facts.workers.lines if facts.workers is not None else ()
    assert facts.script is not None
    bare = replace(facts, script=msgspec.structs.replace(facts.script, sources={}))
    assert line_change(bare, hotspot) is None


DEEP = "deepcopy(self.graphs[i])"


@pytest.mark.parametrize(
    ("imported", "call", "after"),
    [
        ("import copy as cp", "cp.deepcopy(self.graphs[i])", "cp.copy(self.graphs[i])"),
        ("from copy import deepcopy", "deepcopy(self.graphs[i])", "copy.copy(self.graphs[i])"),
        ("from copy import copy, deepcopy", "deepcopy(self.graphs[i])", None),
        ("from copy import deepcopy", "(copy := deepcopy(self.graphs[i]))", None),
    ],
)
def test_a_name_of_the_scripts_own_is_not_taken_by_an_import(
    imported: str, call: str, after: str | None
) -> None:
    path = SCRIPTS / "deep.py"
    text = path.read_text()
    assert DEEP in text and "from copy import deepcopy" in text
    text = text.replace(DEEP, call).replace("from copy import deepcopy", imported)
    facts = starved(path, "fetch", {}, text)
    (hotspot,) = facts.workers.lines if facts.workers is not None else ()
    change = line_change(facts, hotspot)
    if after is None:
        assert change is None
        return
    assert change is not None
    made = applied(text, blocks(change.code))
    assert after in made and output(made) == output(text)


@pytest.mark.parametrize(
    "later",
    ["self.frame = self.frame[::-1]", "self.frame['label'] = 0", "self.frame.loc[0, 'label'] = 1",
     "self.frame.sort_values('label', inplace=True)", "self.frame.pop('label')", "del self.frame"],
)  # fmt: skip
def test_columns_of_a_frame_that_changes_later_stay_in_it(later: str) -> None:
    path = SCRIPTS / "frame.py"
    text, method = path.read_text(), "    def __getitem__("
    assert text.count(method) == 1
    for line_, kept in ((later, True), ("print(len(self.frame))", False)):
        changed = text.replace(method, f"    def draw(self):\n        {line_}\n\n{method}")
        facts = starved(path, "fetch", {}, changed)
        (hotspot,) = facts.workers.lines if facts.workers is not None else ()
        assert (line_change(facts, hotspot) is None) is kept
