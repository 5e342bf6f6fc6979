"""The real command in a subprocess: parsing, exit codes, one line for what is wrong."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from loaderdoctor.cli import cli
from loaderdoctor.commands.options import TORCHRUN
from loaderdoctor.commands.output import share_rules
from loaderdoctor.errors import UsageError

TRACES = Path(__file__).parents[2] / "traces"


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loaderdoctor", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
    )


def parsed(*args: str) -> dict[str, Any]:
    """The parameters a command gets, without running it."""
    command = cli.commands[args[0]]
    context = command.make_context(args[0], list(args[1:]))
    return context.params


def test_everything_after_the_script_is_the_scripts() -> None:
    found = parsed("diagnose", "--budget", "9", "train.py", "--budget", "7", "-m", "--json", "x")
    assert found["budget_s"] == 9
    assert found["script"] == "train.py"
    assert found["args"] == ("--budget", "7", "-m", "--json", "x")


def test_m_makes_the_script_a_module() -> None:
    found = parsed("diagnose", "-m", "pkg.train", "--lr", "0.1")
    assert found["as_module"] and found["script"] == "pkg.train"
    assert found["args"] == ("--lr", "0.1")


def test_options_of_torchrun_are_accepted_and_explained_in_one_place() -> None:
    words = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--standalone", "--role", "x")
    found = parsed("diagnose", *words, "train.py")
    assert found["nproc_per_node"] == "2"
    assert found["rdzv_backend"] == "c10d"
    assert found["standalone"] is True
    command = cli.commands["diagnose"]
    text = command.get_help(command.make_context("diagnose", ["train.py"]))
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    text = "".join(text.split())  # lines break within long names
    assert all(name in text for name, _ in TORCHRUN)
    assert text.count("torchrun--help") == 1
    assert [row for row in rows if row in dict(TORCHRUN)] == ["--nproc-per-node"]


def test_a_script_that_refuses_its_arguments_leaves_no_folder(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    for command in ("diagnose", "sweep"):
        done = run(command, "train.py", "--nope", cwd=tmp_path)
        assert done.returncode == 2
        assert "unrecognized arguments: --nope" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_grid_takes_several_axes_and_ends_at_the_script() -> None:
    found = parsed(
        "sweep", "--grid", "num_workers=0,2", "pin_memory=true,false", "--budget", "5", "train.py",
        "--grid", "mine=1",
    )  # fmt: skip
    assert found["grid"] == ("num_workers=0,2", "pin_memory=true,false")
    assert found["target"] == ("train.py", "--grid", "mine=1")


def test_grid_may_be_repeated() -> None:
    found = parsed("sweep", "--grid", "num_workers=0:6:2", "--grid", "background=host", "t.py")
    assert found["grid"] == ("num_workers=0:6:2", "background=host")


def test_an_equals_sign_after_grid_is_a_space() -> None:
    found = parsed("sweep", "--grid=num_workers=0,2", "pin_memory=true", "train.py")
    assert found["grid"] == ("num_workers=0,2", "pin_memory=true")
    assert found["target"] == ("train.py",)


def test_grid_without_values_says_what_it_wants() -> None:
    with pytest.raises(click.UsageError, match="AXIS=VALUES"):
        parsed("sweep", "--grid", "train.py")


@pytest.mark.parametrize("option", ["--budget", "--trial-limit"])
@pytest.mark.parametrize("command", ["diagnose", "sweep"])
def test_times_are_numbers_of_seconds(command: str, option: str) -> None:
    for text in ("nan", "inf", "0", "soon"):
        with pytest.raises(click.UsageError):
            parsed(command, option, text, "train.py")
    assert parsed(command, option, "1.5", "train.py")["target" if command == "sweep" else "script"]
    with pytest.raises(click.UsageError, match="'ten' is not a number of seconds"):
        parsed(command, option, "ten", "train.py")


def test_counts_are_whole_numbers() -> None:
    with pytest.raises(click.UsageError, match="'two' is not a whole number"):
        parsed("prove", "--turns", "two", "run")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"", "empty"),
        (b"hello", "not"),
        (b'{"a": 1}', "not a"),
        (gzip.compress(b'{"traceEvents": [' + b'{"ph": "X"},' * 500, mtime=0)[:60], "truncated"),
    ],
)
def test_unreadable_traces_exit_2_with_one_line(
    content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.json.gz"
    if content is not None:
        path.write_bytes(content)
    done = run("analyze", str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(path) in done.stderr and words in done.stderr.lower()


def test_a_missing_script_exits_2_and_leaves_no_folder(tmp_path: Path) -> None:
    done = run("diagnose", "nowhere.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere.py" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_analyze_writes_nothing_unless_asked(tmp_path: Path) -> None:
    done = run("analyze", str(TRACES / "gpu_resident.pt.trace.json.gz"), cwd=tmp_path)
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_json_to_stdout_is_json_alone_and_the_report_goes_to_stderr() -> None:
    done = run("analyze", "--json", "-", str(TRACES / "sync_loader_decode.pt.trace.json.gz"))
    report = json.loads(done.stdout)
    assert report["schema"] == "loaderdoctor.report/1"
    assert report["verdict"]["bound"] == "input"
    assert abs(sum(v for v in report["shares"].values() if v is not None) - 1.0) < 1e-6
    assert "Input-bound" in done.stderr


@pytest.mark.parametrize(("rule", "code"), [("input>20%", 3), ("input>90%", 0), ("copy>=50 %", 0)])
def test_fail_on_exits_3_where_the_rule_holds(rule: str, code: int) -> None:
    path = TRACES / "sync_loader_decode.pt.trace.json.gz"
    assert run("analyze", "--fail-on", rule, str(path)).returncode == code


def without_spans(path: Path, *kept: str, **changed: object) -> None:
    """The sample with the marks of its steps, and of what else these categories hold."""
    sample = TRACES / "sync_loader_decode.pt.trace.json.gz"
    document = json.loads(gzip.decompress(sample.read_bytes()))
    document["deviceProperties"] = []
    document["traceEvents"] = [
        {**event, **changed}
        for event in document["traceEvents"]
        if event.get("name", "").startswith("ProfilerStep#") or event.get("cat") in kept
        if event.get("ph") == "X" and event.get("cat") != "gpu_user_annotation"
    ]
    path.write_text(json.dumps(document))


def test_fail_on_passes_nothing_in_silence_where_there_is_no_verdict(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    rules = "--fail-on", "input>20%", "--fail-on", "host>50%"
    without_spans(trace)  # the steps are marked, and nothing else is there
    done = run("analyze", "--verbose", *rules, "--json", str(tmp_path / "r.json"), str(trace))
    assert done.returncode == 0 and "No verdict: the trace holds no loader" in done.stdout
    assert done.stderr.count("so this was not judged") == len(done.stderr.splitlines()) == 2
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["findings"] == [] and found["shares"]["host"] is None
    without_spans(trace, "cpu_op", "user_annotation", dur=0)
    done = run("analyze", *rules, "--json", str(tmp_path / "r.json"), str(trace))
    assert done.returncode == 0 and "No verdict" in done.stdout
    assert done.stderr.count("so this was not judged") == len(done.stderr.splitlines()) == 2
    assert json.loads((tmp_path / "r.json").read_text())["shares"]["input"] is None


def test_no_verdict_judges_no_share_that_was_recorded(tmp_path: Path) -> None:
    """Without step marks the shares are those of the whole window: no rule is judged by them."""
    sample = TRACES / "sync_loader_decode.pt.trace.json.gz"
    document = json.loads(gzip.decompress(sample.read_bytes()))
    document["traceEvents"] = [
        e for e in document["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "cpu_op")
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(document))
    done = run("analyze", "--fail-on", "compute>=0%", str(trace))
    assert done.returncode == 0, done.stderr
    assert "there is no verdict, so this was not judged" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
@pytest.mark.parametrize("words", [("recipes",), ("analyze",), ("analyze", "--json", "-")])
def test_a_full_disk_is_told_in_one_line(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "loaderdoctor", *words]
    if words[0] == "analyze":
        command.append(str(TRACES / "gpu_resident.pt.trace.json.gz"))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("loaderdoctor: ")]
    assert said == ["loaderdoctor: stdout: can't be written (No space left on device)."]
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("rule", ["loader is slow", "input>1.2.3%", "input>.%", "input>101%"])
def test_a_rule_that_can_not_be_read_is_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="'input>20%'"):
        share_rules([rule])


def test_a_damaged_trace_keeps_none_of_the_others_from_being_reported(tmp_path: Path) -> None:
    (tmp_path / "damaged.json").write_text('{"traceEvents": [{"ph": "X", ')
    good = [TRACES / f"{x}.pt.trace.json.gz" for x in ("sync_loader_decode", "gpu_resident")]
    done = run("analyze", str(good[0]), str(tmp_path / "damaged.json"), str(good[1]))
    assert done.returncode == 2
    assert all(path.name in done.stdout for path in good)
    assert "damaged.json: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("seed", ["-1", str(2**32)])
def test_a_seed_that_numpy_does_not_take_is_refused(seed: str) -> None:
    with pytest.raises(click.BadParameter, match="0<=x<=4294967295"):
        parsed("prove", "--seed", seed, "run")


def test_a_refused_rule_exits_2_before_anything_runs() -> None:
    assert run("analyze", "--fail-on", "loader is slow", "anything.json").returncode == 2


def test_analyze_output_holds_the_whole_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    path = TRACES / "recreated_iterator.pt.trace.json.gz"
    done = run("analyze", "--output", str(out), str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert {"report.json", "console.txt", "perfetto/baseline.json.gz"} <= names
    assert any(n.startswith("tensorboard/baseline/") and n.endswith(".gz") for n in names)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_folder_with_something_in_it_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    path = TRACES / "gpu_resident.pt.trace.json.gz"
    done = run("analyze", "--output", str(tmp_path), str(path))
    assert done.returncode == 2
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_tensorboard_repairs_a_trace_into_a_new_folder_each_time(tmp_path: Path) -> None:
    path = TRACES / "gpu_resident.pt.trace.json.gz"
    for _ in range(2):
        assert run("analyze", "--tensorboard", str(tmp_path), str(path)).returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gpu_resident", "gpu_resident-2"]
