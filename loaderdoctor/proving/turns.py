"""Runs a script and its changed form in turns, in fresh processes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from loaderdoctor import format as fmt
from loaderdoctor.errors import RunError
from loaderdoctor.instrument.command import POLITE_S, MeasuringProcess
from loaderdoctor.instrument.wire.channel import (
    CHECKED_VARIABLE,
    CheckedConfig,
    CheckedRun,
    CheckedSamples,
    samples_file,
)
from loaderdoctor.proving import Proof, agree, kept, proof
from loaderdoctor.proving.samples import Samples, digests_in, input_difference, samples
from loaderdoctor.proving.speed import decided, looks, may_decide, ratio, surely

# Steps whose inputs and losses are compared, before any is timed.
N_CHECKED = 30
# A run may take this long beyond its timed seconds: imports, the first epoch's caches, saving.
MAX_BEYOND_S = 300.0
# What of it is taken to see the samples of whole epochs, in each form, where batches differ.
SAMPLES_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two forms: what is run, where, and with which words."""

    name: Literal["original", "changed"]
    kind: Literal["script", "module"]
    target: str  # a path relative to `cwd`, or a module's name
    args: tuple[str, ...]
    cwd: Path  # within a copy
    moved: tuple[Path, Path] | None = None  # the folder that was copied, and its copy
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How often and how long."""

    n_turns: int = 3  # at least
    max_turns: int = 12  # where fewer leave it open whether the change gains anything
    seconds: float = 12.0  # of timing in each run, behind the checked steps
    seed: int = 0


def in_turns(original: Side, changed: Side, how: Turns, *, started: Callable[[str], None]) -> Proof:
    """Run both in alternating order until that decides, and judge; `started` is told of each run.

    They take `how.n_turns` turns, and more up to `how.max_turns` while the ratio is neither told
    from 1 nor known to be about that (`looks` says after which it is looked at), nor the forms
    that far apart that it needs no interval (`surely`), as long as the last of them may decide it
    (`may_decide`).

    Raises RunError where a run fails, ends before it trained enough steps, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="loaderdoctor-prove-") as folder:
        turns: list[tuple[CheckedRun, CheckedRun]] = []
        first: dict[str, Path] = {}
        after, began_s = looks(how.n_turns, how.max_turns), time.monotonic()
        for i in range(after[-1]):
            if i in after:
                speed_up = ratio(turns, n_looks=len(after))
                if speed_up is None or decided(speed_up) or surely(turns) is not None:
                    break
                of = next(n for n in after if n > i)
                left = f"{i} turns leave it open ({speed_up.low:.2f} to {speed_up.high:.2f} times "
                if not may_decide(speed_up, after[-1]):
                    started(f"{left}as fast), and so would {after[-1]}: runs differ too much")
                    break
                more_s = (time.monotonic() - began_s) / i * (of - i)
                started(f"{left}as fast): {of - i} more of them, about {fmt.seconds(more_s)}")
            of = next(n for n in after if n > i)
            sides = (original, changed) if i % 2 == 0 else (changed, original)
            done: dict[str, CheckedRun] = {}
            for side in sides:
                out = Path(folder, f"{side.name}{i}")
                out.mkdir()
                started(f"turn {i + 1} of {of}: {side.name}")
                done[side.name] = _run(side, out, how)
                first.setdefault(side.name, out)
            turns.append((done["original"], done["changed"]))
        fixed = _with_fixed_draws(original, changed, Path(folder), how, turns[0], started)
        difference = input_difference(first["original"], first["changed"])
        found = proof(turns, n_looks=len(after), fixed=fixed, max_input_difference=difference)
        if found is not None and found.other_batches and difference is None:
            seen = _samples(original, changed, Path(folder), how, started)
            found = replace(found, samples=seen)
    if found is None:
        raise RunError(
            "A run ended before enough of its steps could be timed: the script trains too few. "
            "Give it more (epochs, data), or a smaller --seconds."
        )
    return found


def _with_fixed_draws(
    original: Side,
    changed: Side,
    folder: Path,
    how: Turns,
    turn: tuple[CheckedRun, CheckedRun],
    started: Callable[[str], None],
) -> tuple[CheckedRun, CheckedRun] | None:
    """Both once more where they differ, with random draws that are the same by construction.

    None where they do not differ, or where one fails so: then nothing is known of it.
    """
    if agree(kept(*turn)):
        return None
    started("they differ: both again, with every batch's random draws fixed")
    runs = []
    for side in (original, changed):
        out = folder / f"{side.name}-fixed"
        out.mkdir()
        try:
            runs.append(_run(side, out, replace(how, seconds=0.0), fixed_draws=True))
        except RunError as error:
            started(str(error))
            return None
    return runs[0], runs[1]


def _samples(
    original: Side, changed: Side, folder: Path, how: Turns, started: Callable[[str], None]
) -> Samples | None:
    """What became of the samples of an epoch; None where a run fails that looks at them."""
    started("other batches: both once more, for the samples of a whole epoch")
    wanted = CheckedSamples(n_epochs=2, limit_s=SAMPLES_S)
    runs, digests = [], []
    for side in (original, changed):
        out = folder / f"{side.name}-samples"
        out.mkdir()
        try:
            run = _run(side, out, how, samples=wanted)
        except RunError as error:
            started(str(error))
            return None
        epochs = [digests_in(samples_file(out, i)) for i in range(run.n_epochs)]
        if not epochs and side is original:
            return samples([], [], None, alike=run.rows_alike)
        runs.append(run)
        digests.append(epochs)
        wanted = CheckedSamples(
            n_epochs=1, limit_s=SAMPLES_S, n_rows=len(epochs[0] if epochs else ())
        )
    first = samples_file(folder / f"{changed.name}-samples", None)
    return samples(
        digests[0],
        digests[1],
        digests_in(first) if first.exists() else None,
        alike=all(run.rows_alike for run in runs),
        drawn=any(run.samples_drawn for run in runs),
    )


def _run(
    side: Side,
    out: Path,
    how: Turns,
    *,
    fixed_draws: bool = False,
    samples: CheckedSamples | None = None,
) -> CheckedRun:
    config = CheckedConfig(
        kind=side.kind,
        target=side.target,
        args=side.args,
        out=str(out),
        seconds=how.seconds,
        n_checked=N_CHECKED,
        seed=how.seed,
        moved=(str(side.moved[0]), str(side.moved[1])) if side.moved is not None else None,
        fixed_draws=fixed_draws,
        samples=samples,
    )
    environment = {
        **os.environ,
        **side.environment,
        "PYTHONHASHSEED": str(how.seed),
        CHECKED_VARIABLE: msgspec.json.encode(config).decode(),
    }
    with _in_folder(side.cwd), (out / "output").open("wb") as output:
        process = MeasuringProcess(
            environment=environment, stdout=output.fileno(), module="entry.checked_run"
        )
        try:
            ended = process.wait(how.seconds + MAX_BEYOND_S)
        finally:
            process.end(polite_s=POLITE_S if process.exit_code is None else 0.0)
    if not ended:
        raise RunError(
            f"The {side.name} script had not trained for {how.seconds:g} s after "
            f"{how.seconds + MAX_BEYOND_S:g} s, and was ended."
        )
    if process.exit_code:
        raise RunError(
            f"The {side.name} script failed (exit code {process.exit_code}): see above. It ran in "
            "a copy of its folder; what it reads from outside needs an absolute path."
        )
    run = CheckedRun.read(out)
    if run is None or (samples is None and not run.steps):
        raise RunError(
            f"The {side.name} script ended without a training step: no optimizer stepped."
        )
    if run.foreign:
        raise RunError(
            f"{', '.join(run.foreign[:5])}: imported from your own folder and not from its copy, "
            "so the change would not have run. Take the import hook that does it away, or the "
            "editable install (pip uninstall), and prove again."
        )
    return run


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """The measuring process starts where the command is; this is its one process at a time."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
