"""Advice as it is printed, written into files of every form: nothing else of them changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loaderdoctor.errors import UsageError
from loaderdoctor.proving.edits import FileEdit, Hunk, file_edits, hunks
from loaderdoctor.report.run_model import text_hash

CODE = """train.py:3
- loader = DataLoader(ds)  # mine
+ loader = DataLoader(ds, num_workers=2)  # mine
train.py:5
+ x = 1
  for batch in loader:"""
SCRIPT = [
    "import torch",
    "ds = Data()  ",
    "loader = DataLoader(ds)  # mine",
    "",
    "for batch in loader:",
    "\tstep(batch)",
]


def edited(file: Path, code: str = CODE) -> FileEdit:
    text = file.read_bytes().decode().replace("\r\n", "\n")
    (edit,) = file_edits(hunks(code), {str(file): text_hash(text)}, {})
    return edit


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "train.py"
    file.write_bytes("\n".join(SCRIPT).encode() + b"\n")
    yield file
    assert file.exists()


def test_what_is_printed_is_read_with_its_places() -> None:
    first, second = hunks(CODE)
    assert first == Hunk(
        name="train.py",
        line=3,
        old=("loader = DataLoader(ds)  # mine",),
        new=("loader = DataLoader(ds, num_workers=2)  # mine",),
    )
    assert second.line == 5
    assert second.old == ("for batch in loader:",)
    assert second.new == ("x = 1", "for batch in loader:")
    assert hunks("") == ()
    assert hunks("- of no file\n+ at all") == ()
    (third,) = hunks("train.py:3\n- x = 1  # as in b.py:12\n+ x = 2  # as in b.py:12")
    assert (third.line, third.new) == (3, ("x = 2  # as in b.py:12",))


def test_only_the_lines_named_change(train: Path) -> None:
    before, after = train.read_bytes().split(b"\n"), edited(train).after.split(b"\n")
    assert after[:2] == before[:2]  # blanks at the end of a line too
    assert after[2] == b"loader = DataLoader(ds, num_workers=2)  # mine"
    assert after[4:] == [b"x = 1", *before[4:]]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_and_the_lack_of_a_last_one_stay(train: Path, end: bytes, last: bool) -> None:
    train.write_bytes(end.join(x.encode() for x in SCRIPT) + (end if last else b""))
    after = edited(train).after
    assert after.count(b"\n") == train.read_bytes().count(b"\n") + 1
    assert (b"\r\n" in after) is (end == b"\r\n")
    assert after.replace(b"\r\n", b"").count(b"\n") == (0 if end == b"\r\n" else after.count(b"\n"))
    assert after.endswith(b"step(batch)" + (end if last else b""))


def test_a_byte_order_mark_stays_and_is_no_part_of_the_first_line(train: Path) -> None:
    text = "loader = DataLoader(ds)\n"
    train.write_bytes(b"\xef\xbb\xbf" + text.encode())
    code = "train.py:1\n- loader = DataLoader(ds)\n+ loader = DataLoader(ds, num_workers=2)"
    (edit,) = file_edits(hunks(code), {str(train): text_hash(text)}, {})
    assert edit.after == b"\xef\xbb\xbfloader = DataLoader(ds, num_workers=2)\n"


def test_mixed_line_ends_stay_where_they_were(train: Path) -> None:
    text = "\r\n".join(SCRIPT[:3]) + "\n" + "\n".join(SCRIPT[3:]) + "\n"
    train.write_bytes(text.encode())
    after = edited(train).after.decode()
    assert after.startswith("import torch\r\nds = Data()  \r\nloader")
    assert after.endswith("for batch in loader:\n\tstep(batch)\n")


def test_a_line_at_the_very_end_may_change(train: Path) -> None:
    train.write_bytes(b"a = 1\nb = 2")
    assert edited(train, "train.py:2\n- b = 2\n+ b = 3\n+ c = 4").after == b"a = 1\nb = 3\nc = 4"


def test_a_file_that_changed_since_the_run_is_never_written(train: Path) -> None:
    known = {str(train): text_hash(train.read_text())}
    train.write_text(train.read_text() + "# later\n")
    with pytest.raises(UsageError, match="has changed since the run"):
        file_edits(hunks(CODE), known, {})
    train.unlink()
    with pytest.raises(UsageError, match="can't be read"):
        file_edits(hunks(CODE), known, {})
    train.write_text("")


def test_changes_that_meet_are_refused_and_the_same_one_twice_is_one(train: Path) -> None:
    assert edited(train, f"{CODE}\n{CODE}") == edited(train)
    with pytest.raises(UsageError, match="two of these changes meet"):
        edited(train, f"{CODE}\ntrain.py:3\n- loader = DataLoader(ds)  # mine\n+ pass")


def test_two_files_of_one_name_or_none_are_left_to_the_user(train: Path) -> None:
    known = {str(train): "x", str(train.parent / "other" / "train.py"): "y"}
    with pytest.raises(UsageError, match="has changed since"):  # the one that has these lines
        file_edits(hunks(CODE), known, {})
    (train.parent / "other").mkdir()
    (train.parent / "other" / "train.py").write_text(train.read_text())
    with pytest.raises(UsageError, match="read 2 files of that name"):
        file_edits(hunks(CODE), known, {})
    with pytest.raises(UsageError, match="read 0 files of that name"):
        file_edits(hunks(CODE), {}, {})


def test_the_diff_is_one_that_patch_reads(train: Path) -> None:
    diff = edited(train).diff(train.parent)
    assert diff.startswith("--- a/train.py\n+++ b/train.py\n@@ -1,6 +1,7 @@\n")
    assert "-loader = DataLoader(ds)  # mine\n+loader = DataLoader(ds, num_workers=2)" in diff
    train.write_bytes(b"a = 1")
    assert "\\ No newline at end of file" in edited(train, "train.py:1\n- a = 1\n+ a = 2").diff(
        train.parent
    )


def test_two_changes_may_put_lines_in_one_place(train: Path) -> None:
    both = (
        "train.py:1\n+ import gc\n  import torch\n"
        "train.py:1\n+ import copy\n  import torch\ntrain.py:5\n- for batch in loader:\n"
        "+ for batch in ahead(loader):"
    )
    after = edited(train, both).after.decode()
    assert after.replace("\r\n", "\n").startswith("import gc\nimport copy\nimport torch\n")
    assert "for batch in ahead(loader):" in after


def test_a_file_keeps_the_encoding_that_it_declares(train: Path) -> None:
    script = ["# -*- coding: latin-1 -*-", "ds = Data()  # größer", *SCRIPT[2:]]
    train.write_bytes("\r\n".join([*script, ""]).encode("latin-1"))
    text = "\n".join([*script, ""])
    (edit,) = file_edits(hunks(CODE), {str(train): text_hash(text)}, {})
    after = edit.after.decode("latin-1").split("\r\n")
    assert after[1] == script[1]
    assert after[2] == "loader = DataLoader(ds, num_workers=2)  # mine"
    assert "+loader = DataLoader(ds, num_workers=2)  # mine" in edit.diff(train.parent)
    beyond = CODE.replace("# mine", "# – mine").replace(
        "- loader = DataLoader(ds)  # –", "- loader = DataLoader(ds)  #"
    )
    with pytest.raises(UsageError, match="can't hold the change"):
        file_edits(hunks(beyond), {str(train): text_hash(text)}, {})


def test_a_file_outside_the_folder_is_named_by_its_whole_path(train: Path, tmp_path: Path) -> None:
    lines = edited(train).diff(tmp_path / "elsewhere").splitlines()
    assert lines[:2] == [f"--- {train}", f"+++ {train}"]
