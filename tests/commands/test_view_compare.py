"""Comparing two runs: by their intervals, never by point estimates."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from loaderdoctor.commands.view import compare as command
from loaderdoctor.errors import UsageError
from loaderdoctor.report import encode_report, model, run_model
from loaderdoctor.report.comparison import compare, render_comparison, sentence


def run(
    wall_ms: float,
    margin_ms: float | None,
    *,
    workers: int = 0,
    input_share: float = 0.5,
    batch_size: int = 64,
    host: str = "here",
) -> model.Report:
    return model.Report(
        command="diagnose",
        target="train.py",
        verdict=model.Verdict(bound="input", severity="high", summary="…"),
        step=model.Step(
            count=100,
            wall_ms=wall_ms,
            wall_ms_ci=None if margin_ms is None else (wall_ms - margin_ms, wall_ms + margin_ms),
            definition="one batch",
        ),
        loaders=(
            model.Loader(id="train.py:1", settings={"num_workers": workers}, batch_size=batch_size),
        ),
        shares=model.Shares(
            compute=1 - input_share, communication=0.0, copy=None, input=input_share, host=0.0,
            other=0.0,
        ),
        trace_shares=None,
        hidden=model.Hidden(input_ms=None, copy_ms=None),
        ablation=None,
        profiler_overhead=None,
        workers=None,
        findings=(),
        recommendations=(),
        not_advised=(),
        trials=(),
        best=None,
        claims=(),
        ranks=(),
        warnings=(),
        environment={"host": host},
        method=(),
    )  # fmt: skip


def saved(report: model.Report, folder: Path) -> Path:
    folder.mkdir()
    (folder / "report.json").write_bytes(encode_report(report))
    return folder


def test_a_gain_beyond_the_noise_is_faster() -> None:
    found = compare(run(40.0, 1.0), run(20.0, 1.0, workers=4))
    assert found.change == "faster"
    assert found.difference_ms is not None
    assert found.difference_ms.margin == pytest.approx(2**0.5)
    assert found.settings == (("num_workers", 0, 4),)
    assert sentence(found).startswith("Faster: 40.0 ms → 20.0 ms")


def test_settings_of_ours_read_in_words() -> None:
    before, after = run(40.0, 1.0), run(20.0, 1.0)
    loader = before.loaders[0]
    pair = [
        msgspec.structs.replace(
            report, loaders=(msgspec.structs.replace(loader, settings={"background": value}),)
        )
        for report, value in ((before, "off"), (after, "host"))
    ]
    out = io.StringIO()
    Console(file=out, width=120, markup=False).print(render_comparison(compare(*pair), ("a", "b")))
    assert "a background thread (prefetch_generator)" in out.getvalue()
    assert "no background thread" in out.getvalue()


def test_a_difference_within_the_noise_is_none() -> None:
    found = compare(run(40.0, 3.0), run(37.0, 3.0))
    assert found.change == "no difference"
    assert "No difference beyond the noise" in sentence(found)


def test_a_run_without_an_interval_gives_no_verdict() -> None:
    before, trace = run(40.0, 1.0), run(10.0, None)
    found = compare(before, trace)
    assert found.change == "unknown"
    assert "the second run" in sentence(found)
    assert "--budget" in sentence(found)
    found = compare(before, msgspec.structs.replace(trace, command="analyze"))  # which has none
    assert "--budget" not in sentence(found)


def test_what_makes_two_runs_hard_to_compare_is_said() -> None:
    found = compare(run(40.0, 1.0), run(20.0, 1.0, batch_size=32, host="there"))
    assert any("host differs" in c for c in found.caveats)
    assert any("batch size" in c for c in found.caveats)


def test_runs_of_other_batch_sizes_are_compared_for_as_many_samples() -> None:
    before, after = run(40.0, 1.0), run(60.0, 1.0, batch_size=128)
    found = compare(before, after)
    assert sentence(found).startswith("Faster: 40.0 ms → 30.0 ms for as many samples, 10.0 ± 1.1")
    assert {s.name: s.after_ms for s in found.shares}["input"] == pytest.approx(15.0)
    assert compare(before, run(20.0, 1.0, batch_size=32)).change == "no difference"


def script(folder: str, text: str, name: str = "train.py") -> run_model.Script:
    path = f"{folder}/{name}"
    return run_model.Script(
        given=name, module=None, args=(), cwd=folder, n_ranks=1, sources={path: text}
    )


@pytest.mark.parametrize(("second", "differs"), [
    (script("/b", "two"), True),
    (script("/b", "one"), False),  # a copy of it
    (script("/a", "two"), False),  # the same, edited since
    (None, False),
])  # fmt: skip
def test_two_scripts_of_one_name_are_two(second: run_model.Script | None, differs: bool) -> None:
    before = msgspec.structs.replace(run(40.0, 1.0), script=script("/a", "one"))
    found = compare(before, msgspec.structs.replace(run(20.0, 1.0), script=second))
    assert found.change == "faster"
    assert ("they ran different things: /a/train.py and /b/train.py" in found.caveats) is differs
    assert ("less, of two scripts that differ." in sentence(found)) is differs


def test_another_dataset_is_said() -> None:
    pair = [
        msgspec.structs.replace(
            report, loaders=(msgspec.structs.replace(report.loaders[0], dataset=name),)
        )
        for report, name in ((run(40.0, 1.0), "Houses"), (run(20.0, 1.0), "Folder"))
    ]
    assert compare(*pair).caveats == ("the dataset differs: Houses and Folder",)


def test_what_one_run_never_recorded_is_no_change() -> None:
    """A `run` without a profile: all but the waits is `other`."""
    whole = run(40.0, 1.0)
    bare = msgspec.structs.replace(
        whole,
        command="run",
        shares=model.Shares(
            compute=None, communication=None, copy=None, input=0.5, host=None, other=0.5
        ),
    )
    there, back = compare(bare, whole), compare(whole, bare)
    assert {s.name: s.before_ms for s in there.shares}["other"] is None
    assert {s.name: s.after_ms for s in back.shares}["other"] is None
    assert {s.name: s.after_ms for s in compare(bare, bare).shares}["other"] == 20.0


@pytest.mark.parametrize(("n_steps", "seen_ms"), [(100, None), (400, 0.0)])
def test_nothing_outside_is_nothing_once_it_was_due(n_steps: int, seen_ms: float | None) -> None:
    def wall(outside_ms: float, n_steps: int) -> run_model.Wall:
        part = run_model.Outside(
            what="validation", site=None, ms_per_step=outside_ms, seconds=1.0, n=2, every_steps=125
        )
        return run_model.Wall(
            total_ms=40.0 + outside_ms,
            step_ms=40.0,
            outside_ms=outside_ms,
            outside_share=0.1,
            n_steps=n_steps,
            outside=(part,) if outside_ms else (),
        )

    before, after = (
        msgspec.structs.replace(run(40.0, 1.0), wall=one)
        for one in (wall(3.5, 300), wall(0.0, n_steps))
    )
    found = {s.name: (s.before_ms, s.after_ms) for s in compare(before, after).shares}
    assert found["outside"] == (3.5, seen_ms)


@pytest.mark.parametrize("size", [0, -3, 10**400])
def test_sizes_that_no_batch_has_scale_nothing(size: int) -> None:
    pair = run(40.0, 1.0), run(20.0, 1.0, batch_size=size)
    assert [compare(*one).change for one in (pair, pair[::-1])] == ["faster", "slower"]


def test_a_comparison_is_readable_on_a_terminal_without_unicode() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=out, width=80, markup=False)
    console.print(render_comparison(compare(run(40.0, 1.0), run(20.0, 1.0)), ("a", "b")))
    out.seek(0)
    assert "Faster: 40.0 ms > 20.0 ms a step" in out.read()


def test_two_files_of_one_name_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [saved(run(ms, 1.0), Path(name)) / "report.json" for name, ms in (("x", 40), ("y", 20))]
    command(*runs)
    assert "x/report.json" in capsys.readouterr().out


def test_shares_are_compared_in_milliseconds_not_in_percent() -> None:
    found = compare(run(40.0, 1.0, input_share=0.75), run(20.0, 1.0, input_share=0.5))
    by_name = {s.name: s for s in found.shares}
    assert by_name["input"].before_ms == pytest.approx(30.0)
    assert by_name["input"].after_ms == pytest.approx(10.0)
    assert by_name["compute"].before_ms == by_name["compute"].after_ms == pytest.approx(10.0)
    assert by_name["copy"].before_ms is None


@pytest.mark.parametrize(
    ("after", "code"), [(run(20.0, 1.0), 0), (run(60.0, 1.0), 3), (run(60.0, None), 2)]
)
def test_exit_code_fails_on_regression_only(after: model.Report, code: int, tmp_path: Path) -> None:
    before = saved(run(40.0, 1.0), tmp_path / "a")
    later = saved(after, tmp_path / "b")
    assert command(before, later) == 0
    assert command(before, later, fail_on_regression=True) == code


def test_a_folder_without_a_report_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"report\.json"):
        command(tmp_path, tmp_path)


def test_reports_survive_the_round_trip(tmp_path: Path) -> None:
    report = run(40.0, 1.0)
    folder = saved(report, tmp_path / "a")
    assert msgspec.json.decode((folder / "report.json").read_bytes(), type=model.Report) == report
