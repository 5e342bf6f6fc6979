"""A script that we run can't tell that it isn't run by plain python."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.instrument.command.launch_config import LaunchOptions, Target
from loaderdoctor.instrument.command.script_run import ScriptRun
from loaderdoctor.instrument.entry import CannotStartError, run_script, strip_frames

SHOW = """
import os, sys, json
print(json.dumps({
    "name": __name__, "file": __file__, "spec": __spec__ and __spec__.name, "argv": sys.argv,
    "path0": sys.path[0], "package": __package__, "names": sorted(globals()),
    "cwd": os.getcwd(), "main": sys.modules["__main__"].__dict__ is globals(),
    "ours": sorted(k for k in os.environ if k.startswith("LOADERDOCTOR")),
    "torch": "torch" in sys.modules, "numpy": "numpy" in sys.modules,
}))
"""


def plain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )


def watched(
    folder: Path, target: Target, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str, str, str]:
    """Exit code, how it ended, stdout and stderr of a script that we ran."""
    before = Path.cwd()
    os.chdir(folder)
    capfd.readouterr()
    try:
        with ScriptRun(target, folder / "run") as script_run:
            with pytest.raises(RunError):
                script_run.wait_observed(60)
            assert script_run.ended is not None
            script_run.stop(to_end=True)
            code, how = script_run.ended.exit_code, script_run.ended.how
    finally:
        os.chdir(before)
    out, err = capfd.readouterr()
    return code, how, out, err


def test_a_script_sees_what_it_would_see_under_plain_python(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "show.py").write_text(SHOW)
    expected = plain(tmp_path, "sub/show.py", "--lr", "1")
    target = Target(script="sub/show.py", args=("--lr", "1"))
    code, how, out, err = watched(tmp_path, target, capfd)
    assert (code, how) == (0, "no-loader")
    assert (out, err) == (expected.stdout, expected.stderr)


@pytest.mark.parametrize("name", ["pack", "pack.part"])
def test_a_module_sees_what_it_would_see_under_plain_python(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pack").mkdir()
    for file in ("__init__.py", "__main__.py", "part.py"):
        (tmp_path / "pack" / file).write_text(SHOW)
    expected = plain(tmp_path, "-m", name, "x")
    _, _, out, _ = watched(tmp_path, Target(module=name, args=("x",)), capfd)
    assert out == expected.stdout


@pytest.mark.parametrize(
    "body",
    [
        "def f():\n    raise ValueError('broken')\nf()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
        "import sys; sys.excepthook = lambda *a: print('mine', a[0].__name__); {}['x']",
        "import sys; sys.excepthook = lambda *a: sys.exit(4); {}['x']",
        "import sys; sys.excepthook = lambda *a: {}['y']; {}['x']",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a text')",
        "import os; print('last', flush=True); os._exit(7)",
        "def f(:\n    pass",
        "import atexit; atexit.register(print, 'at exit'); raise SystemExit",
        "import atexit, sys\n"
        "last = lambda: [repr(getattr(sys, f'last_{x}', 0)) for x in ('type', 'value', 'exc')]\n"
        "atexit.register(lambda: print(last(), sys.last_traceback.tb_lineno))\n"
        "{}['x']",
        "n: int = 1\nprint(__annotations__)",
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(.2), print('thread'))).start()",
        "import multiprocessing, threading, time\n"
        "if __name__ == '__main__':\n"
        "    for method in ('fork', 'forkserver'):\n"
        "        process = multiprocessing.get_context(method).Process(\n"
        "            target=time.sleep, args=(.5,)\n"
        "        )\n"
        "        thread = threading.Thread(target=process.start)\n"
        "        [(one.start(), one.join()) for one in (thread,)]\n"
        "        process.join()\n"
        "        print(method, process.exitcode)",
    ],
)
def test_a_script_ends_as_under_plain_python(
    body: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ends.py").write_text(body + "\n")
    expected = plain(tmp_path, "ends.py")
    code, _, out, err = watched(tmp_path, Target(script="ends.py"), capfd)
    assert (code, out, err) == (expected.returncode, expected.stdout, expected.stderr)


def test_exceptions_of_a_group_show_no_frame_of_ours() -> None:
    with pytest.raises(CannotStartError) as inner:
        run_script("nowhere.py", ())
    outer = RuntimeError("several")
    outer.exceptions = (inner.value,)  # type: ignore[attr-defined]  # as ExceptionGroup has them
    strip_frames(outer)
    frames = traceback.extract_tb(inner.value.__traceback__)
    assert [Path(frame.filename).name for frame in frames] == ["test_main_script.py"]


def test_standard_input_is_what_it_is_under_plain_python(tmp_path: Path) -> None:
    shows = "import sys; print(sys.stdin.mode, ascii(sys.stdin.readline()), ascii(input()))"
    watches = "from loaderdoctor.instrument.entry.child import StdinWatch; StdinWatch().watch(); "
    said = [
        subprocess.run(
            [sys.executable, "-c", code], input=b"a\r\nb\rc\n", capture_output=True, timeout=60
        ).stdout
        for code in (shows, watches + shows)
    ]
    assert said[0] and said[0] == said[1]


def test_a_missing_module_is_told_as_python_tells_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = plain(tmp_path, "-m", "nowhere")
    code, how, _, err = watched(tmp_path, Target(module="nowhere"), capfd)
    assert (code, err) == (expected.returncode, expected.stderr)
    assert how == "script-failed"


def test_a_missing_script_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"nowhere\.py"),
        ScriptRun(Target(script="nowhere.py"), tmp_path / "run"),
    ):
        pass


def test_script_output_can_go_to_stderr_or_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hello.py").write_text("print('hello')\n")
    target = Target(script=str(tmp_path / "hello.py"))
    for options in (LaunchOptions(stdout="stderr"), LaunchOptions(stdout=tmp_path / "out.txt")):
        with ScriptRun(target, tmp_path / "run", options) as script_run, pytest.raises(RunError):
            script_run.wait_observed(60)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hello\n")
    assert (tmp_path / "out.txt").read_text() == "hello\n"
