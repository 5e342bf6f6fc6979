"""Processes that die, hang or leave: a result of their trial, and a report of what there is."""

from __future__ import annotations

import re
import signal

import pytest

from loaderdoctor.instrument.command.endings import took_down
from loaderdoctor.instrument.command.launch_config import LaunchOptions, Target
from loaderdoctor.instrument.command.script_run import ScriptRun
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings
from tests.faults.running import Place, script

slow = pytest.mark.slow

KILLED_WORKER = """
def fault(where, n):
    # In the processes of a trial's pool only: the loop's own loader has no workers.
    if where == "worker" and n == 30:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trial_whose_worker_is_killed_fails_and_the_loop_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    target = Target(script=str(script(place.path, KILLED_WORKER)))
    with ScriptRun(
        target, place.path / "run", LaunchOptions(stdout=place.path / "said")
    ) as script_run:
        script_run.wait_observed(120.0)
        killed, plain = script_run.measure(
            [
                WindowRequest(
                    id=1, mode="trial", n_steps=20, settings=Settings(num_workers=2), limit_s=60.0
                ),
                WindowRequest(id=2, mode="plain", n_steps=5, limit_s=60.0),
            ]
        )
        script_run.stop()
    assert killed.status == "failed"
    # torch's own words, unless a read from the worker failed first.
    assert re.search("killed by signal|worker was killed|exited unexpectedly", killed.reason or "")
    assert (plain.status, plain.n_steps) == ("ok", 5)


@slow
def test_a_diagnosis_reports_the_rest_beside_a_trial_whose_worker_is_killed(
    own_shm: Place,
) -> None:
    done = own_shm.diagnose(script(own_shm.path, KILLED_WORKER), budget_s=40)
    assert done.code == 0, done.stderr
    done.check_clean()
    assert own_shm.in_shm() == []
    failed = [t for t in done.said.trials if t.status == "failed"]
    assert failed, done.said.trials
    assert re.search(
        "killed by signal|worker was killed|exited unexpectedly", failed[0].reason or ""
    )
    assert done.said.verdict.bound == "input"
    assert done.said.ablation is not None


@slow
def test_a_sweep_goes_on_behind_a_trial_whose_worker_is_killed(own_shm: Place) -> None:
    fault = KILLED_WORKER.replace("n == 30", "n == 30 and get_worker_info().num_workers == 2")
    done = own_shm.run(
        "sweep", "--grid", "num_workers=0,1,2", "--budget", "15", "--output", "out",
        script(own_shm.path, fault),
    )  # fmt: skip
    assert done.code == 0, done.stderr
    done.check_clean()
    assert own_shm.in_shm() == []
    status = {t.settings["num_workers"]: t for t in done.said.trials[1:]}
    assert status[2].status == "failed"
    assert re.search(
        "killed by signal|worker was killed|exited unexpectedly", status[2].reason or ""
    )
    assert status[1].status == "ok"
    assert status[1].step_ms is not None


@slow
def test_a_worker_of_the_loops_own_that_is_killed_fails_the_script_as_unwatched(
    own_shm: Place,
) -> None:
    fault = KILLED_WORKER.replace("n == 30", "n == 380")
    done = own_shm.diagnose(script(own_shm.path, fault, workers=1), budget_s=60)
    assert done.code == 1, done.stderr
    done.check_clean()
    assert own_shm.in_shm() == []
    assert "killed by signal: Killed" in done.stderr
    assert done.said.step.wall_ms is not None


OUT_OF_MEMORY = """
def fault(where, n):
    # As the kernel's OOM killer does: no word, no chance.
    if where == "step" and n == {n}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@slow
def test_a_script_that_the_system_kills_leaves_a_report_that_says_so(place: Place) -> None:
    done = place.diagnose(script(place.path, OUT_OF_MEMORY.format(n=600)), budget_s=60)
    assert done.code == 128 + signal.SIGKILL
    done.check_clean()
    assert done.said.step.wall_ms is not None
    (said,) = [w.text for w in done.said.warnings if w.kind == "script-killed"]
    assert "SIGKILL" in said
    assert "out-of-memory" in said


@slow
def test_a_script_that_is_killed_before_it_was_measured_is_told_why(place: Place) -> None:
    done = place.diagnose(script(place.path, OUT_OF_MEMORY.format(n=3)))
    assert done.code == 128 + signal.SIGKILL
    assert done.report is None
    assert "SIGKILL" in done.last_line
    assert "out-of-memory" in done.last_line


@slow
def test_a_trial_that_runs_out_of_address_space_fails_with_the_allocators_words(
    place: Place,
) -> None:
    fault = """
import resource

def fault(where, n):
    if where == "loaded":
        # What is mapped by now and a little: enough for the loop, not for a copy of the data.
        mapped = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (200 << 20), -1))
    if where == "worker" and n == 1:
        bytearray(2 << 30)
"""
    done = place.run(
        "sweep", "--grid", "num_workers=0,1", "--budget", "10", "--output", "out",
        script(place.path, fault),
    )  # fmt: skip
    assert done.code == 0, done.stderr
    done.check_clean()
    failed = [t for t in done.said.trials if t.status == "failed"]
    assert failed, done.said.trials
    assert "MemoryError" in (failed[0].reason or "") or "memory" in (failed[0].reason or "")


@slow
def test_a_trial_in_a_process_of_its_own_that_is_killed_is_one_row(place: Place) -> None:
    fault = """
def fault(where, n):
    if where == "worker" and n == 30 and get_worker_info().num_workers == 2:
        os.kill(os.getppid(), signal.SIGKILL)
"""
    done = place.run(
        "sweep", "--isolate", "--grid", "num_workers=0,1,2", "--rounds", "1", "--budget", "60",
        "--output", "out", script(place.path, fault),
    )  # fmt: skip
    done.check_one_trial_failed("num_workers", 2, words="SIGKILL", sound=1)


LEAVES = """
def fault(where, n):
    if (where, n) == {when!r}:
        os._exit(7)
"""


@pytest.mark.parametrize(
    "when",
    [
        pytest.param(("loaded", 0), marks=slow),
        pytest.param(("step", 0), marks=slow),
        pytest.param(("step", 5), marks=slow),
        pytest.param(("step", 600), marks=slow),
        pytest.param(("sample", 900), marks=slow),
    ],
)
def test_a_script_that_leaves_at_once_leaves_its_exit_code_and_what_was_measured(
    when: tuple[str, int], place: Place
) -> None:
    done = place.diagnose(script(place.path, LEAVES.format(when=when)), budget_s=60)
    assert done.code == 7, done.stderr
    done.check_clean()
    if when in (("loaded", 0), ("step", 0), ("step", 5)):
        assert done.report is None
        assert "exit code 7" in done.last_line
        return
    assert done.said.step.wall_ms is not None
    assert "script-ended-early" in {w.kind for w in done.said.warnings}


HANGS = """
def fault(where, n):
    if where == {where!r} and n >= {n}:
        time.sleep(3600)
"""


@slow
@pytest.mark.parametrize(("where", "n"), [("worker", 30), ("sample", 900)])
def test_a_hung_dataset_is_given_up_and_the_trial_named(where: str, n: int, place: Place) -> None:
    done = place.run(
        "sweep", "--grid", "num_workers=0,1", "--trial-limit", "10", "--budget", "20",
        "--output", "out", script(place.path, HANGS.format(where=where, n=n)),
    )  # fmt: skip
    done.check_clean()
    said = done.said
    assert any(t.step_ms is not None for t in said.trials)
    if where == "worker":
        assert done.code == 0, done.stderr
        (failed,) = [t for t in said.trials if t.status == "failed"]
        assert failed.settings["num_workers"] == 1
        assert "timed out after 10" in (failed.reason or "")
    else:
        texts = " ".join(w.text for w in said.warnings)
        assert "hangs" in texts or any("hangs" in (t.reason or "") for t in said.trials)


@slow
def test_a_diagnosis_names_the_setting_under_which_the_dataset_hung(place: Place) -> None:
    done = place.diagnose(
        script(place.path, HANGS.format(where="worker", n=30)), "--trial-limit", "5", budget_s=40
    )
    assert done.code == 0, done.stderr
    done.check_clean()
    failed = [t for t in done.said.trials if t.status == "failed"]
    assert failed
    assert all("timed out after 5" in (t.reason or "") for t in failed)
    assert done.said.ablation is not None


OUT_OF_GPU_MEMORY = """
class Hungry(torch.nn.Module):
    def forward(self, x):
        if x.shape[0] > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return x

def fault(where, n):
    global hungry
    if where == "loaded":
        import __main__
        __main__.model = torch.nn.Sequential(Hungry(), __main__.model)
"""


@slow
def test_without_rerun_a_script_that_a_trial_took_down_is_not_started_again(place: Place) -> None:
    done = place.run(
        "sweep", "--grid", "batch_size=4,16", "--budget", "8", "--no-ablation",
        "--output", "out", script(place.path, OUT_OF_GPU_MEMORY),
    )  # fmt: skip
    done.check_clean()
    assert done.stdout.count("loaded") == 1
    (over,) = [w.text for w in done.said.warnings if w.kind == "sweep-script-over"]
    assert "out of memory" in over
    assert "--rerun" in over


def test_a_trial_that_runs_out_of_gpu_memory_is_charged_with_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    target = Target(script=str(script(place.path, OUT_OF_GPU_MEMORY)))
    with ScriptRun(
        target, place.path / "run", LaunchOptions(stdout=place.path / "said")
    ) as script_run:
        script_run.wait_observed(120.0)
        small, large = (
            script_run.measure(
                [
                    WindowRequest(
                        id=n, mode="trial", n_steps=5, settings=Settings(batch_size=n), limit_s=60.0
                    )
                ]
            )[0]
            for n in (8, 16)
        )
        assert (small.status, small.n_samples) == ("ok", 40)
        assert took_down(small, script_run.ended) is None
        why = took_down(large, script_run.ended)
    assert why is not None
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB." in why


@slow
def test_a_trial_that_runs_out_of_gpu_memory_fails_and_the_others_go_on(place: Place) -> None:
    done = place.run(
        "sweep", "--grid", "batch_size=4,8,16", "--budget", "8", "--no-ablation", "--rerun",
        "--output", "out", script(place.path, OUT_OF_GPU_MEMORY),
    )  # fmt: skip
    sound = done.check_one_trial_failed("batch_size", 16, words="out of memory", sound=8)
    assert sound.step_ms is not None


SECOND_PROFILER = """
from torch.profiler import profile, schedule
profiler = profile({options})

def fault(where, n):
    if (where, n) == ("step", {at}):
        profiler.start()
    elif where == "step" and n > {at}:
        profiler.step()
"""


@pytest.mark.parametrize(
    ("options", "at"),
    [
        pytest.param("", 0, marks=slow),
        pytest.param("schedule=schedule(wait=5, warmup=1, active=3)", 0, marks=slow),
        pytest.param("", 60, marks=slow),
        pytest.param("", 90, marks=slow),
        pytest.param("", 140, marks=slow),
    ],
)
def test_with_a_profiler_of_the_scripts_own_times_and_ablation_stand(
    options: str, at: int, place: Place
) -> None:
    fault = SECOND_PROFILER.format(options=options, at=at)
    done = place.diagnose(script(place.path, fault), "--no-verify", budget_s=8)
    assert done.code == 0, done.stderr
    done.check_clean()
    assert "Traceback" not in done.stderr
    said = done.said
    assert said.step.wall_ms is not None
    assert said.ablation is not None
    assert said.verdict.bound == "input"
    if said.trace_shares is None:
        (text,) = [w.text for w in said.warnings if w.kind == "no-trace"]
        assert "one" in text
