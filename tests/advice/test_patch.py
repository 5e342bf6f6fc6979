"""Changes of a file: tried by compiling it, printed as its own lines."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.patch import Editor, define, statement_below_imports
from loaderdoctor.advice.source import Source, unknown_names
from loaderdoctor.advice.writing import written
from loaderdoctor.settings import Settings
from tests.advice.printed import applied, blocks, facts_of

TEXT = """\
import torch

x = 1
def f(a):
    return a + x
y = f(x)
"""


def source(text: str = TEXT) -> Source:
    found = Source.of("a/train.py", text)
    assert found is not None
    return found


def test_a_change_is_printed_at_its_line_with_what_it_replaces() -> None:
    file, editor = source(), Editor()
    editor.replace(file, (TEXT.index("a + x"), TEXT.index("a + x") + 5), "a - x")
    assert editor.patch().printed() == "train.py:5\n-     return a + x\n+     return a - x"


def test_new_lines_are_printed_above_the_line_they_go_in_front_of() -> None:
    file, editor = source(), Editor()
    editor.insert(file, TEXT.index("y = f"), "z = 2")
    assert editor.patch().printed() == "train.py:6\n+ z = 2\n  y = f(x)"
    statement_below_imports(editor, file, ["torch.set_num_threads(1)"])
    assert (
        editor.patch().printed().startswith("train.py:2\n+ torch.set_num_threads(1)\n\ntrain.py:6")
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("a + x", "a +", "does not compile"),
        ("a + x", "a + unheard_of", "the script has no unheard_of"),
        ("x = 1", "x = 1", "has it already"),
    ],
)
def test_what_does_not_fit_is_refused(old: str, new: str, why: str) -> None:
    file, editor = source(), Editor()
    editor.replace(file, (TEXT.index(old), TEXT.index(old) + len(old)), new)
    with pytest.raises(CannotEdit, match=why):
        editor.patch()


def test_two_changes_of_one_place_are_refused() -> None:
    file, editor = source(), Editor()
    editor.replace(file, (0, 5), "import")
    editor.replace(file, (3, 8), "x")
    with pytest.raises(CannotEdit, match="meet"):
        editor.patch()


def test_a_definition_brings_its_imports_and_takes_no_name_that_is_there() -> None:
    file, editor = source("from torch import nn\nx = nn\n"), Editor()
    define(editor, file, file.tree.body[1], "class A(torch.nn.Module):\n    n = os.sep")
    after = editor.patch().files[0][1]
    assert after.startswith("from torch import nn\nimport os\nimport torch\n\n\nclass A(")
    assert after.endswith("n = os.sep\n\n\nx = nn\n")
    with pytest.raises(CannotEdit, match="has a x of its own"):
        define(editor, file, file.tree.body[1], "def x():\n    pass")


def test_names_are_known_by_where_they_may_be_read() -> None:
    assert unknown_names("def f():\n    return q\nq = 1\nprint(r, __file__)") == {"r"}
    assert unknown_names("def f():\n    q = 1\ndef g():\n    return q") == {"q"}
    assert unknown_names("from os import *\nprint(sep)") == frozenset()
    assert unknown_names("class A:\n    n = 1\n    def m(self):\n        return n") == {"n"}


def test_what_is_bound_is_known_by_its_line() -> None:
    file = source("def main():\n    use(device)\n    device = 1\nlate = 2\n")
    use = file.tree.body[0].body[0]  # type: ignore[attr-defined]
    assert not file.bound_before("device", use)
    assert file.bound_before("late", use)  # the module is done by when the function runs
    assert not file.bound_before("nothing", use)
    assert file.bound_before("print", use)


LINES = st.lists(st.sampled_from(["a = 1", "b = 2", "", "if a:\n    b = 3", "c = '''x\n  y'''"]),
                 min_size=1, max_size=8)  # fmt: skip


@given(before=LINES, after=LINES)
def test_a_printed_patch_makes_the_file_that_was_tried(before: list[str], after: list[str]) -> None:
    old, new = "\n".join(["a = 0", *before, ""]), "\n".join(["a = 0", *after, ""])
    file, editor = source(old), Editor()
    editor.replace(file, (0, len(old)), new)
    try:
        text = editor.patch().printed()
    except CannotEdit:
        assert old == new
        return
    assert applied(old, blocks(text)) == new


def test_definitions_stand_apart_above_the_comments_of_their_statement() -> None:
    text = "import os\n\nn = 1\n# The data.\nx = [n]\nprint(x)\n"
    file, editor = source(text), Editor()
    define(editor, file, file.tree.body[2], "class A:\n    pass\n")
    define(editor, file, file.tree.body[2], "class B:\n    pass\n")
    define(editor, file, file.tree.body[2], "class A:\n    pass\n")
    assert editor.patch().files[0][1] == (
        "import os\n\nn = 1\n\n\nclass A:\n    pass\n\n\nclass B:\n    pass\n\n\n"
        "# The data.\nx = [n]\nprint(x)\n"
    )


def test_blank_lines_that_are_there_are_no_more_than_two() -> None:
    text = "import os\n\n\nx = os.sep\n"
    file, editor = source(text), Editor()
    define(editor, file, file.tree.body[1], "class A:\n    n = torch")
    after = editor.patch().files[0][1]
    assert after == ("import os\nimport torch\n\n\nclass A:\n    n = torch\n\n\nx = os.sep\n")


LATE = """\
import os
os.environ["OMP_NUM_THREADS"] = "1"
import torch
from torch.utils.data import DataLoader
data = [0.0] * 32
loader = DataLoader(data, batch_size=8)  # train loader
for x in loader:  # train loop
    pass
import json
"""


@pytest.mark.parametrize("settings", [Settings(num_threads=2), Settings(cudnn_benchmark=False)])
def test_what_runs_once_runs_behind_the_imports_that_it_reads(settings: Settings) -> None:
    facts = facts_of(Path("train.py"), text=LATE)
    after = applied(LATE, blocks(written(facts, settings).code)).splitlines()
    (at,) = (i for i, line in enumerate(after) if line.startswith(("torch.set", "torch.backends")))
    assert after[at - 1] == "from torch.utils.data import DataLoader"
    moved = LATE.replace("import torch\n", "def f():\n    pass\nimport torch\n")
    assert written(facts_of(Path("train.py"), text=moved), settings).code == ""


def test_what_is_imported_comes_behind_what_the_script_sets_before() -> None:
    text = LATE.replace("import torch\n", "import torch as th\n")
    facts = facts_of(Path("train.py"), text=text)
    after = applied(text, blocks(written(facts, Settings(cache=True)).code))
    assert after.index("os.environ") < after.index("import torch\n")


def test_what_the_scripts_own_lines_are_warned_of_is_no_word_of_ours() -> None:
    text = 'import re\nfrom torch.utils.data import DataLoader\nre.match("\\d", "1")\n'
    text += "loader = DataLoader([0.0] * 8)  # train loader\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        facts = facts_of(Path("train.py"), text=text)
        assert "num_workers=2" in written(facts, Settings(num_workers=2)).code
