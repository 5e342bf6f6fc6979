"""Raw samples on disk: what anyone reads from them, and a sweep that goes on from them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from loaderdoctor.cluster import Hardware
from loaderdoctor.commands.sweep.plan import SweepOptions
from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep, timings_file
from loaderdoctor.tryout import Measurement, Options, Trial
from loaderdoctor.tryout.measuring import Equipment
from tests.fuzz import sound
from tests.tryout.simulator import SimulatedRun, Truth, observed

TRIALS = (Settings(), Settings(num_workers=1), Settings(num_workers=2))
OWN = Truth(step_ms=10.0)


def truth(settings: Settings) -> Truth:
    return Truth(step_ms=10.0 - 2 * (settings.num_workers or 0), boundary_ms=30.0)


def sweep_of(script_run: SimulatedRun, trials: list[Trial], *, search: str = "grid") -> Sweep:
    options = Options(budget_s=60.0, n_rounds=5, search=search)  # type: ignore[arg-type]
    return Sweep(
        observed(), trials, options, Equipment(script_run=script_run, clock=script_run.clock)
    )


def fresh_trials() -> list[Trial]:
    return [Trial(index=i, settings=one) for i, one in enumerate(TRIALS)]


def test_every_window_is_read_back_as_it_was(tmp_path: Path) -> None:
    device = Measurement(
        phase="rank",
        round=4,
        wall_s=1.5,
        window=msgspec.structs.replace(sound.WINDOW, gpu_peak_allocated_bytes=2**20),
    )
    host = Measurement(
        phase="calibrate",
        round=0,
        wall_s=0.5,
        window=WindowDone(
            id=0, mode="trial", status="ok", n_steps=1, start_ns=1, end_ns=2, host_step_ns=(1,)
        ),
    )
    trials = [
        Trial(index=0, settings=Settings(), measurements=[host]),
        Trial(index=1, settings=Settings(num_workers=2), measurements=[device, host]),
    ]
    timings_file.write(tmp_path, trials, options={"seed": 3}, spent_s=12.0)
    description, measurements = timings_file.read(tmp_path)
    assert measurements == {0: [host], 1: [device, host]}
    assert description.options == {"seed": 3}
    assert description.trials[1].settings == {"num_workers": 2}


def test_the_file_is_plain_arrays_that_give_the_same_means(tmp_path: Path) -> None:
    script_run = SimulatedRun(truth, OWN, noise=0.02)
    sweep = sweep_of(script_run, fresh_trials())
    sweep.run()
    timings_file.write(tmp_path, sweep.outcome.trials, options={}, spent_s=1.0)
    with np.load(tmp_path / timings_file.NAME, allow_pickle=False) as data:
        offsets, steps = data["step_offsets"], data["flat_host_step_ns"]
        ranked = np.flatnonzero((data["trial"] == 2) & (data["phase"] == 1))
        means = [steps[offsets[i] : offsets[i + 1]].mean() / 1e6 for i in ranked]
    ours = [measurement.times.within_ms for measurement in sweep.outcome.trials[2].of("rank")]
    assert means == pytest.approx(ours)
    assert len(means) == 5


@pytest.mark.parametrize("after", [3, 9, 14])
def test_an_interrupted_sweep_goes_on_with_the_rounds_it_lacks(tmp_path: Path, after: int) -> None:
    script_run = SimulatedRun(truth, OWN, noise=0.02, interrupt_after=after)
    first = sweep_of(script_run, fresh_trials())
    assert first.run().ended == "interrupted"
    timings_file.write(tmp_path, first.outcome.trials, options={}, spent_s=10.0)
    before = sum(len(trial.measurements) for trial in first.outcome.trials)

    trials = fresh_trials()
    timings_file.restore(trials, *timings_file.read(tmp_path))
    assert sum(len(trial.measurements) for trial in trials) == before
    script_run = SimulatedRun(truth, OWN, noise=0.02, seed=1)
    second = sweep_of(script_run, trials)
    outcome = second.run()
    assert outcome.ended == "done"
    for trial in outcome.trials:
        assert [measurement.round for measurement in trial.of("rank")] == [1, 2, 3, 4, 5]
        assert len(trial.of("calibrate")) == 1
    assert second.ranking().recommended == 2


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    script_run = SimulatedRun(truth, OWN, noise=0.02, interrupt_after=5)
    first = sweep_of(script_run, fresh_trials(), search="auto")
    first.run()
    timings_file.write(tmp_path, first.outcome.trials, options={}, spent_s=10.0)
    trials = fresh_trials()
    timings_file.restore(trials, *timings_file.read(tmp_path))
    second = sweep_of(SimulatedRun(truth, OWN, noise=0.02, seed=1), trials, search="auto")
    second.run()
    assert second.ranking().recommended == 2


def test_samples_of_other_trials_are_refused(tmp_path: Path) -> None:
    timings_file.write(tmp_path, fresh_trials(), options={}, spent_s=0.0)
    others = [
        Trial(index=0, settings=Settings()),
        Trial(index=1, settings=Settings(in_order=False)),
    ]
    with pytest.raises(UsageError, match="not the same"):
        timings_file.restore(others, *timings_file.read(tmp_path))


def test_a_folder_without_samples_and_a_broken_file_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        timings_file.read(tmp_path)
    (tmp_path / timings_file.NAME).write_bytes(b"PK not an archive")
    with pytest.raises(UsageError, match="not the samples of a sweep"):
        timings_file.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_steps", 0),
        ("n_steps", 2),  # and the times of three
        ("start_ns", -1),
        ("start_ns", 1 << 40),  # after its end
        ("startup_ns", -2),
        ("host_bytes", -(1 << 62)),
        ("flat_host_step_ns", 0),
        ("flat_host_step_ns", -5),
        ("flat_device_step_ns", 1 << 62),
        ("wall_s", np.nan),
        ("phase", -1),  # the last one, were it an index of Python's
    ],
)
def test_windows_that_nobody_can_have_measured_are_refused(
    tmp_path: Path, name: str, value: float
) -> None:
    path = sound.samples(tmp_path)
    assert len(timings_file.read(tmp_path)[1]) == 2
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files}
    arrays[name][0] = value
    np.savez(path, **arrays)
    with pytest.raises(UsageError, match=r"samples\.npz: not the samples of a sweep"):
        timings_file.read(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("rounds", 0), ("budget_s", -1.0), ("search", "\x1b")])
def test_options_that_the_command_line_refuses_are_refused_from_a_file_too(
    name: str, value: object
) -> None:
    options = SweepOptions(resume=Path("run"))
    saved = SweepOptions(target=("train.py",), rounds=2, budget_s=60.0).saved()
    assert options.resumed(saved).rounds == 2
    with pytest.raises(UsageError, match=r"--resume run: not a sweep's options") as refused:
        options.resumed({**saved, name: value})
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("trials", [((1, 9),), ((0, 1),), ((-1,),), ((1,), (1, 2))])
def test_groups_of_trials_that_do_not_fit_are_refused_in_words(
    tmp_path: Path, trials: tuple[tuple[int, ...], ...]
) -> None:
    hardware = Hardware(
        host="a", machine="1", cpu=None, usable_cpus=2.0, memory_bytes=1, gpus=(), torch=None,
        version="0",
    )  # fmt: skip
    groups = tuple(
        timings_file.SavedGroup(
            index=i, trials=each, part="rank", host="a", hardware=hardware, loop=""
        )
        for i, each in enumerate(trials)
    )
    timings_file.write(tmp_path, fresh_trials(), options={}, spent_s=0.0, groups=groups)
    with pytest.raises(UsageError, match="do not fit together"):
        timings_file.read(tmp_path)
