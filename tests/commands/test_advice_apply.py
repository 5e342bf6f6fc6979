"""`apply` on a report: prints, writes, takes back, and touches nothing that it should not."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from loaderdoctor.commands.advice import apply, replace_file
from loaderdoctor.errors import UsageError
from loaderdoctor.proving.edits import advised, words_of
from loaderdoctor.proving.record import JOURNAL, standing
from loaderdoctor.report import encode_report, read_report
from loaderdoctor.report.model import Recommendation, Report
from loaderdoctor.report.run_model import Script, text_hash

GOLDEN = Path(__file__).parents[1] / "report" / "golden" / "input_bound.json"
BEFORE = 'loader = DataLoader(ds)\nfor x in loader:\n\tprint("ä")\n'
AFTER = BEFORE.replace("(ds)", "(ds, num_workers=2)")


def row(setting: str, to: object, ms: float | None, **more: str) -> Recommendation:
    return Recommendation(
        setting=setting,
        from_=0 if to is not None else None,
        to=to,
        code=more.pop("code", ""),
        predicted_step_ms=5.0 if ms is None else None,
        predicted_from="ablation",
        measured_step_ms=ms,
        measured_ci_ms=(ms - 1, ms + 1) if ms is not None else None,
        **more,  # type: ignore[arg-type]
    )


WORKERS = "train.py:1\n- loader = DataLoader(ds)\n+ loader = DataLoader(ds, num_workers=2)"
LOOP = "train.py:2\n- for x in loader:\n+ for x in tqdm(loader):"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    script = tmp_path / "src" / "train.py"
    script.parent.mkdir()
    script.write_text(BEFORE)
    known = Script(
        given="src/train.py",
        module=None,
        args=("--lr", "0.1"),
        cwd=str(tmp_path),
        n_ranks=1,
        sources={str(script): text_hash(BEFORE)},
    )
    report = msgspec.structs.replace(
        msgspec.json.decode(GOLDEN.read_bytes(), type=Report),
        script=known,
        recommendations=(
            row("num_workers", 2, 3.0, code=WORKERS),
            row("pin_memory", True, 3.0, code=WORKERS),
            row("Show progress", None, None, code=LOOP),
            row("prefetch_factor", 8, 7.0, command="OMP_NUM_THREADS=1 python src/train.py -p 8"),
            row("An idea", None, None, idea="Think."),
        ),
    )
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.json").write_bytes(encode_report(report))
    return folder


def script_of(run: Path) -> Path:
    return run.parent / "src" / "train.py"


def test_the_first_change_is_printed_and_nothing_written(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert apply(run) == 0
    out, err = capsys.readouterr()
    assert out.startswith("--- a/src/train.py\n+++ b/src/train.py\n")
    assert "+loader = DataLoader(ds, num_workers=2)\n" in out
    assert "apply --write" in err
    assert "prove" in err
    assert script_of(run).read_text() == BEFORE
    assert sorted(x.name for x in run.iterdir()) == ["report.json"]


def test_what_a_change_does_to_training_is_said_and_expected(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = read_report(run)
    apply(run)
    assert "training" not in capsys.readouterr().err
    assert advised(report, ()).expected is None
    dealt = "samples come in other batches"
    first, second, *rest = report.recommendations
    said = (msgspec.structs.replace(first, trains=dealt), second, *rest)
    changed = msgspec.structs.replace(report, recommendations=said)
    (run / "report.json").write_bytes(encode_report(changed))
    assert advised(changed, (1,)).expected == dealt
    assert advised(changed, (2,)).expected is None
    assert advised(changed, (1, 2)).expected == dealt
    apply(run)
    assert f"training does not stay the same: {dealt}" in capsys.readouterr().err


def test_changes_are_written_together_and_taken_back(run: Path) -> None:
    script = script_of(run)
    script.chmod(0o750)
    apply(run, (1, 2), write=True)
    assert script.read_text() == AFTER.replace("in loader:", "in tqdm(loader):")
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    apply(run, undo=True)
    assert script.read_text() == BEFORE
    with pytest.raises(UsageError, match="nothing of this run was applied"):
        apply(run, undo=True)


def test_a_second_change_is_written_on_top_of_the_first_and_each_is_taken_back(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apply(run, write=True)
    capsys.readouterr()
    apply(run, (2,), write=True)
    out = capsys.readouterr().out
    assert "-for x in loader:" in out
    assert "num_workers" not in out.replace(" loader = DataLoader(ds, num_workers=2)", "")
    assert script_of(run).read_text() == AFTER.replace("in loader:", "in tqdm(loader):")
    assert standing(run)[0] == (1, 2)
    with pytest.raises(UsageError, match="Change 1 is written already"):
        apply(run, write=True)
    apply(run, undo=True)
    assert script_of(run).read_text() == AFTER
    apply(run, undo=True)
    assert script_of(run).read_text() == BEFORE


def test_a_later_edit_is_neither_written_over_nor_undone(run: Path) -> None:
    apply(run, write=True)
    script_of(run).write_text("mine now")
    with pytest.raises(UsageError, match="has changed since the run"):
        apply(run, (2,), write=True)
    with pytest.raises(UsageError, match="nothing was taken back"):
        apply(run, undo=True)
    assert script_of(run).read_text() == "mine now"
    assert (run / JOURNAL).exists()


def test_where_an_option_does_it_the_command_line_is_printed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apply(run, (3,), write=True)
    out, err = capsys.readouterr()
    assert out == "OMP_NUM_THREADS=1 python src/train.py -p 8\n"
    assert "No file changes" in err
    assert not (run / JOURNAL).exists()
    report = read_report(run)
    assert report.script is not None
    words = words_of(report.script, out.strip())
    assert words.args == ("-p", "8")
    assert words.environment == {"OMP_NUM_THREADS": "1"}
    recipe = msgspec.structs.replace(report.script, args=("--epochs", "9"), n_added_args=2)
    assert words_of(recipe, out.strip()).args == ("--epochs", "9", "-p", "8")


@pytest.mark.parametrize(("numbers", "words"), [((9,), "1 to 3"), ((4,), "1 to 3")])
def test_numbers_are_those_of_the_list_without_its_ideas(
    run: Path, numbers: tuple[int, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        apply(run, numbers)


def listing(run: Path, *rows: Recommendation) -> None:
    report = msgspec.structs.replace(read_report(run), recommendations=rows)
    (run / "report.json").write_bytes(encode_report(report))


@pytest.mark.parametrize(
    ("rows", "numbers", "words"),
    [
        (
            (row("resident", True, 3.0, code=LOOP), row("batched", True, 4.0, code=WORKERS)),
            (1, 2),
            "do not go together .*on the device already",
        ),
        (
            (row("num_workers", 2, 3.0, code=WORKERS), row("num_workers", 4, 4.0, code=LOOP)),
            (1, 2),
            "num_workers to two values",
        ),
        (
            (row("num_workers", 2, 3.0, code=WORKERS), row("reuse_buffers", True, 3.0, idea="No.")),
            (1,),
            r"no line of yours for a part of it \(reuse_buffers\). Write it by hand\.$",
        ),
        (  # persistent_workers=True of a loader that each epoch builds anew gained nothing
            (row("num_workers", 2, 3.0, code=WORKERS, idea="Build the loader once."),),
            (1,),
            r"knows are a part of it\. Build the loader once\. Write it by hand\.$",
        ),
        (
            (
                row("num_workers", 2, 3.0, code=WORKERS),
                row("reuse_buffers", True, 3.0, idea="No."),
                row("num_workers", 4, 4.0, code=WORKERS),
            ),
            (1,),
            "Write it by hand. Of this report's changes, 2 can be written",
        ),
        (
            (
                row("num_workers", 2, 3.0, code=WORKERS),
                row("x", None, None, code="train.py:2\n- for x in loader:\n+ for x in loader):"),
            ),
            (1, 2),
            "not Python any more",
        ),
    ],
)
def test_what_was_not_measured_together_or_breaks_is_not_written(
    run: Path, rows: tuple[Recommendation, ...], numbers: tuple[int, ...], words: str
) -> None:
    listing(run, *rows)
    with pytest.raises(UsageError, match=words):
        apply(run, numbers, write=True)
    assert script_of(run).read_text() == BEFORE


def test_a_promise_is_of_one_change_and_measured_where_it_was(run: Path) -> None:
    report = read_report(run)
    assert report.step.wall_ms is not None
    measured, predicted = advised(report, []).promise, advised(report, [2]).promise
    assert measured is not None
    assert measured.times == pytest.approx(report.step.wall_ms / 3.0)
    assert measured.low == pytest.approx(report.step.wall_ms / 4.0)
    assert not measured.at_best
    assert predicted is not None
    assert predicted.times == pytest.approx(report.step.wall_ms / 5.0)
    assert predicted.at_best
    assert advised(report, [1, 2]).promise is None


def test_what_was_applied_is_proven_against_the_file_as_it_ran(run: Path) -> None:
    apply(run, (2,), write=True)
    numbers, before = standing(run)
    assert numbers == (2,)
    assert before == {script_of(run): BEFORE.encode()}
    plan = advised(read_report(run), numbers, as_it_ran=before)
    assert plan.edits[0].before == BEFORE.encode()
    assert plan.edits[0].after == script_of(run).read_bytes()
    script_of(run).write_text("mine now")
    assert standing(run) == ((), {})


def test_a_report_that_knows_no_files_says_what_to_do(run: Path) -> None:
    report = msgspec.structs.replace(read_report(run), script=None)
    (run / "report.json").write_bytes(encode_report(report))
    with pytest.raises(UsageError, match="Run it again"):
        apply(run)


def test_hidden_arguments_are_not_run_with(run: Path) -> None:
    report = read_report(run)
    assert report.script is not None
    script = msgspec.structs.replace(report.script, args=("--token", "***"))
    with pytest.raises(UsageError, match="look like secrets"):
        words_of(script, None)


def test_a_file_is_replaced_through_its_link(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("a")
    (tmp_path / "link.py").symlink_to("real.py")
    replace_file(tmp_path / "link.py", b"b")
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "real.py").read_text() == "b"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["link.py", "real.py"]
