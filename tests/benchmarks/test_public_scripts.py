"""The truth beside which public scripts are judged: from the stopwatch's lines, and its process."""

from __future__ import annotations

import dataclasses
import importlib
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
public_cases, public_data, public_table, public_truth = (
    importlib.import_module(f"public_{name}") for name in ("cases", "data", "table", "truth")
)
sys.path.remove(str(BENCHMARKS))
PLAIN, READY = public_truth.PLAIN, public_truth.READY
timing_of, truth_of = public_truth.timing_of, public_truth.truth_of
why_wrong = public_table.why_wrong
FINE = public_truth.Ended(code=None, output="", seconds=1.0)
DONE = public_truth.Ended(code=0, output="", seconds=1.0)


def lines_of(step_s: float, wait_s: float, *, n: int, state: int, iterator: int = 1) -> str:
    """An iterator's lines: every step takes `step_s`, of which it waits `wait_s`."""
    text = f"{iterator} -1 0.0 0.0 0 0\n"
    for i in range(n):
        text += f"{iterator} {i} {i * step_s:.6f} {i * step_s + wait_s:.6f} {i} {state}\n"
    return text


def test_steps_and_waits_come_from_the_time_between_two_askings() -> None:
    timing = timing_of(lines_of(0.050, 0.020, n=41, state=PLAIN), PLAIN)
    assert timing is not None
    assert timing.step_ms == pytest.approx(50)
    assert timing.wait_ms == pytest.approx(20)
    assert timing.n_steps == 36  # the first epoch's first, and the warm-up, are left out
    assert timing_of(lines_of(0.050, 0.020, n=41, state=PLAIN), READY) is None


def test_steps_that_begin_with_prefetched_batches_do_not_count() -> None:
    fast = lines_of(0.01, 0.005, n=8, state=PLAIN)
    shifted = "".join(
        f"1 {i + 7} {0.07 + 0.1 * i:.4f} {0.12 + 0.1 * i:.4f} {i + 7} 0\n" for i in range(1, 30)
    )
    text = fast + shifted
    few = timing_of(text, PLAIN)
    none = timing_of(text.replace("1 -1 0.0 0.0 0 0", "1 -1 0.0 0.0 0 8"), PLAIN)
    assert few is not None
    assert none is not None
    assert few.step_ms < 95
    assert none.step_ms == pytest.approx(100)


def with_a_queue(n_fast: int, n_slow: int, *, n_ahead: int = 8) -> str:
    """`n_fast` steps of 60 ms that never wait, then such that wait 40 ms more."""
    text, now = f"1 -1 0.0 0.0 0 {n_ahead}\n", 0.0
    for i in range(n_fast + n_slow):
        wait = 0.04 if i >= n_fast else 0.0
        text += f"1 {i} {now:.4f} {now + wait:.4f} {i} 0\n"
        now += 0.06 + wait
    return text


def test_a_loop_that_falls_short_is_timed_once_its_queue_is_dry() -> None:
    timing = timing_of(with_a_queue(30, 40), PLAIN)
    assert timing is not None
    assert timing.step_ms == pytest.approx(100) == timing.most_ms
    assert timing.n_steps == 38


def test_where_no_queue_ran_dry_a_step_may_take_what_new_batches_took() -> None:
    timing = timing_of(with_a_queue(50, 0), PLAIN)
    assert timing is not None
    assert timing.step_ms == pytest.approx(60)
    assert timing.most_ms == pytest.approx(60 * 48 / 40)


def test_advice_is_kept_broken_or_not_known_by_what_the_run_with_it_can_tell() -> None:
    def told(promised_ms: float, after_ms: float, most_ms: float) -> Any:
        changed = dataclasses.replace(timing_like(after_ms), most_ms=most_ms)
        runs = {"plain": [timing_like(200)], "changed": [changed]}
        return public_table.kept({"promised_ms": promised_ms}, runs)["kept"]

    assert told(110, 100, 105) is True
    assert told(130, 100, 105) is False
    assert told(130, 100, 170) is None
    assert told(80, 100, 170) is False


def test_a_loader_without_training_is_not_a_loop() -> None:
    text = lines_of(0.050, 0.020, n=41, state=PLAIN)
    validation = "".join(
        " ".join([*line.split()[:4], "7", "0"]) + "\n" for line in text.splitlines()
    )
    assert timing_of(validation, PLAIN) is None


def test_later_epochs_begin_with_the_call_of_iter() -> None:
    second = "".join(
        f"2 {i} {10 + 0.05 * i + (0.4 if i >= 0 else 0.05):.6f} {10.42 + 0.05 * i:.6f} {50 + i} 0\n"
        for i in range(-1, 30)
    )
    both = lines_of(0.050, 0.020, n=30, state=PLAIN) + second
    timing = timing_of(both, PLAIN)
    assert timing is not None
    assert timing.n_epochs == 2
    assert timing.step_ms > 52  # 450 ms of the second epoch's first step


def timing_like(step_ms: float, wait_ms: float = 0.0, spread: float = 0.0) -> Any:
    blocks = tuple(step_ms * (1 + spread * sign) for sign in (-1, 1, -1, 1))
    return public_truth.Timing(
        step_ms=step_ms, wait_ms=wait_ms, blocks_ms=blocks, n_steps=40, n_epochs=1, most_ms=step_ms
    )


def test_the_share_is_what_ready_batches_save_and_its_noise_what_runs_differ_by() -> None:
    quiet = truth_of([(timing_like(100), timing_like(60))])
    assert quiet.share == pytest.approx(0.4)
    assert quiet.noise == 0.0
    noisy = truth_of([(timing_like(100, spread=0.2), timing_like(60, spread=0.2))])
    assert noisy.noise > 0.1
    apart = truth_of([(timing_like(100), timing_like(60)), (timing_like(100), timing_like(80))])
    assert apart.share == pytest.approx(0.3)
    assert apart.noise == pytest.approx(0.2)


def test_a_process_is_compared_with_itself_where_several_train(tmp_path: Path) -> None:
    def one(name: str, plain_s: float, ready_s: float, n: int) -> None:
        text = lines_of(plain_s, 0.0, n=n, state=PLAIN)
        (tmp_path / name).write_text(text + lines_of(ready_s, 0.0, n=60, state=READY, iterator=2))

    one("a.txt", 0.1, 0.04, 40)
    one("b.txt", 0.2, 0.08, 30)
    plain, ready = public_truth.pair_in(tmp_path)
    assert (plain.step_ms, ready.step_ms) == (pytest.approx(100), pytest.approx(40))
    (tmp_path / "a.txt").write_text(lines_of(0.1, 0.0, n=40, state=PLAIN))
    plain, ready = public_truth.pair_in(tmp_path)
    assert (plain.step_ms, ready.step_ms) == (pytest.approx(200), pytest.approx(80))


def test_a_process_that_is_slower_in_all_it_does_adds_no_noise() -> None:
    truth = truth_of([(timing_like(100), timing_like(60)), (timing_like(150), timing_like(90))])
    assert (truth.share, truth.noise) == (pytest.approx(0.4), pytest.approx(0.0))
    assert (truth.step_ms, truth.ready_ms) == (pytest.approx(125), pytest.approx(75))


def test_the_script_as_it_is_after_ready_batches_counts_and_its_first_steps_do_not() -> None:
    states = [0] * 20 + [1] * 4 + [2] * 20 + [3] * 6 + [4] * 20
    took = {0: 0.05, 1: 0.05, 2: 0.02, 3: 0.9, 4: 0.07}
    text, now = "1 -1 0.0 0.0 0 0\n", 0.0
    for i, state in enumerate(states):
        text += f"1 {i} {now:.4f} {now:.4f} {i} {state}\n"
        now += took[state]
    plain, ready = timing_of(text, PLAIN), timing_of(text, READY)
    assert plain is not None and ready is not None
    assert ready.step_ms == pytest.approx(20)
    assert plain.n_steps == 15 + 19
    assert plain.step_ms == pytest.approx((15 * 50 + 19 * 70) / 34)


def test_ready_batches_are_compared_with_what_is_next_to_them() -> None:
    """A machine that gets slower all the while: 50 to 110 ms, with ready batches 3/5 of that."""
    states = [0] * 20 + [s for k in (0, 10, 20) for s in [k + 2] * 20 + [k + 3] * 6 + [k + 4] * 20]
    text, now = "1 -1 0.0 0.0 0 12\n", 0.0  # its first line holds what workers prefetch
    for i, state in enumerate(states):
        text += f"1 {i} {now:.4f} {now:.4f} {i} {state}\n"
        slower = 0.05 + 0.06 * i / len(states)
        now += slower * {2: 0.6, 3: 0.0}.get(state % 10, 1.0)
    plain, ready = timing_of(text, PLAIN), timing_of(text, READY)
    assert plain is not None and ready is not None
    assert (len(plain.phases_ms), len(ready.phases_ms)) == (6, 3)
    truth = truth_of([(plain, ready)])
    assert truth.share == pytest.approx(0.4, abs=0.03)
    blocks_alone = [dataclasses.replace(one, phases_ms=()) for one in (plain, ready)]
    assert truth.noise < truth_of([tuple(blocks_alone)]).noise / 3


def said(bound: str, share: float, host: float | None = None) -> dict[str, Any]:
    row = {"bound": bound, "severity": "high", "input": share, "claim": None, "bound_share": host}
    return {"said": row}


CASE = public_cases.Case(name="x", clone="examples", folder="x")
FED = truth_of([(timing_like(100), timing_like(99))])
MIXED = truth_of([(timing_like(100), timing_like(82))])
STARVED = truth_of([(timing_like(100), timing_like(30))])


@pytest.mark.parametrize(
    ("row", "truth", "wrong"),
    [
        (said("compute", 0.02), FED, []),
        (said("input", 0.70), STARVED, []),
        (said("input", 0.40), FED, ["false high", "input +39 points"]),
        (said("compute", 0.10), STARVED, ["bound: input, not compute", "input -60 points"]),
        (said("none", 0.70), STARVED, ["no verdict"]),
        (said("unknown", 0.70), STARVED, ["no verdict"]),
        (said("host", 0.15), MIXED, ["bound: input, not host"]),
        (said("host", 0.15, host=0.3), MIXED, []),  # the larger cause
    ],
)
def test_a_row_is_wrong_where_bound_or_share_are(row: Any, truth: Any, wrong: list[str]) -> None:
    assert why_wrong(CASE, row, truth, FINE, DONE) == wrong


def row_of(
    share: float,
    low: float,
    high: float,
    noise: float,
    why: tuple[str, ...] = (),
    bound: str = "compute",
) -> dict[str, Any]:
    """Said with an interval, beside a truth of 26.8 % with this noise."""
    row = said(bound, share)
    row["said"] |= {"claim": {"share": share, "low": low, "high": high}, "severity": "uncertain"}
    row["said"] |= {"step_ms": 100.0, "wait_ms": None}
    return row | {"name": "x", "why": list(why), "truth": {"share": 0.268, "noise": noise}}


def test_a_claim_of_anything_decides_nothing_and_is_told_beside_a_sharp_truth() -> None:
    anything = row_of(0.008, 0.0, 1.0, 0.028)
    truth = dataclasses.replace(FED, ready_ms=73.2, noise=0.028)
    assert why_wrong(CASE, anything, truth, FINE, DONE) == []
    said_of_it = public_table.undecided(anything)
    assert said_of_it is not None and said_of_it.startswith("decides nothing (by the truth alone: ")
    assert said_of_it.endswith("(by the truth alone: input -26 points)")
    assert public_table.cells_of(anything)[-1] == said_of_it
    assert public_table.n_right([anything]) == 0


@pytest.mark.parametrize("severity", ["none", "high"])
@pytest.mark.parametrize("bound", ["compute", "host"])
def test_what_is_said_with_confidence_is_judged_by_the_noise_of_the_truth(
    bound: str, severity: str
) -> None:
    """However wide the claim of the share is: where nothing was compared it may be anything."""
    row = row_of(0.01, 0.01, 1.0, 0.02, bound=bound)
    truth = dataclasses.replace(FED, ready_ms=50.0, noise=0.02)
    assert why_wrong(CASE, row, truth, FINE, DONE) == []  # it says that it is uncertain
    row["said"]["severity"] = severity
    assert why_wrong(CASE, row, truth, FINE, DONE) == [f"bound: input, not {bound}"]
    blurred = dataclasses.replace(truth, noise=0.46)
    assert why_wrong(CASE, row, blurred, FINE, DONE) == []


def test_stored_rows_are_judged_anew_and_keep_what_no_truth_told() -> None:
    row = row_of(0.01, 0.01, 1.0, 0.02, ("exit code 1: x", "input -90 points", "false high"))
    row["said"]["severity"] = "none"
    anew = public_table.judged_anew(row)
    assert anew["why"] == ["exit code 1: x", "bound: input, not compute"]
    assert public_table.judged_anew(anew) == anew
    theirs = row | {"exit": {"theirs": 1, "ours": 1}}
    assert public_table.judged_anew(theirs) is theirs


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (row_of(0.27, 0.2, 0.3, 0.03), None),  # right
        (row_of(0.27, 0.2, 1.0, 0.03), None),  # nothing of that lies between it and the truth
        (row_of(0.20, 0.2, 0.2, 0.25), "decides nothing"),  # the truth says as little
        (row_of(0.25, 0.0, 1.0, 0.03, bound="input"), "decides nothing"),  # but not against it
        (row_of(0.008, 0.0, 1.0, 0.03, ("no verdict",)), None),  # wrong all the same
        ({"name": "x", "why": []}, None),  # nothing to compare with
    ],
)
def test_a_row_is_undecided_by_what_both_leave_open(row: Any, told: str | None) -> None:
    assert public_table.undecided(row) == told
    assert public_table.n_right([row]) == (told is None and not row["why"])


def test_what_breaks_under_us_alone_is_ours_and_what_breaks_anyway_is_not() -> None:
    broken = public_truth.Ended(code=1, output="Traceback\nValueError: no", seconds=1.0)
    assert why_wrong(CASE, said("compute", 0.0), FED, FINE, broken) == [
        "exit code 1: ValueError: no"
    ]
    (theirs,) = why_wrong(CASE, {}, None, broken, broken)
    assert theirs.startswith("the script itself fails")
    ours = public_truth.Ended(code=0, output="This is a defect of loaderdoctor", seconds=1.0)
    assert why_wrong(CASE, said("compute", 0.0), FED, FINE, ours)


@pytest.mark.parametrize(
    ("name", "line", "step_ms", "wait_ms"),
    [
        ("imagenet", "Epoch: [0][  7/125]\tTime  0.175 (  0.326)\tData  0.024 (  0.1)", 175, 24),
        ("timm-train", "Train: 0 [ 1/9] Time: 0.186s,  688.1/s (0.2s, 1/s)  Data: 0.012 (0.02)",
         186, 12),
        ("torchvision-classification", "Epoch: [0] [3/9] eta: 0:01 time: 0.250  data: 0.0300  max",
         250, 30),
    ],
)  # fmt: skip
def test_the_scripts_own_meters_are_read(
    name: str, line: str, step_ms: float, wait_ms: float
) -> None:
    (case,) = (case for case in public_cases.CASES if case.name == name)
    assert public_table.meters_in(case, "\n".join([line] * 8)) == {
        "step_ms": pytest.approx(step_ms),
        "wait_ms": pytest.approx(wait_ms),
    }


def test_each_row_has_as_many_cells_as_the_table() -> None:
    assert len(public_table.cells_of({"name": "x", "why": ["not run"]})) == 8


def test_names_are_unique_and_what_is_left_out_says_why() -> None:
    assert len({case.name for case in public_cases.CASES}) == len(public_cases.CASES)
    assert all(public_cases.EXCLUDED.values())


def test_digits_are_repeated_as_an_idx_file() -> None:
    idx = b"\0\0\x08\x01" + struct.pack(">I", 3) + b"\x01\x02\x03"
    assert (
        public_data._repeated(idx, 2)
        == b"\0\0\x08\x01" + struct.pack(">I", 6) + b"\x01\x02\x03" * 2
    )


SCRIPT = """
    import time
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.arange(80.0).reshape(20, 4)), batch_size=2)
    for epoch in range(6):
        seen = []
        for (x,) in loader:
            seen.append(int(x[0, 0]) // 8)
            model(x).sum().backward()
            optimizer.step()
            time.sleep(0.01)
        print(*seen)
"""


def run_under_the_stopwatch(folder: Path, script: str, **options: str) -> tuple[str, list[str]]:
    """What the script printed, and the stopwatch's lines."""
    file, log = folder / "script.py", folder / "log"
    file.write_text(textwrap.dedent(script))
    log.mkdir()
    env = os.environ | {"PYTHONPATH": str(BENCHMARKS / "stopwatch"), "STOPWATCH": str(log)}
    done = subprocess.run(
        [sys.executable, str(file)], env=env | options, check=True, capture_output=True, text=True
    )
    (lines,) = log.glob("*.txt")
    return done.stdout, lines.read_text().splitlines()


@pytest.mark.slow  # a process that imports torch
def test_ready_batches_come_and_go_as_often_as_asked_for(tmp_path: Path) -> None:
    _, lines = run_under_the_stopwatch(
        tmp_path, SCRIPT.replace("range(6)", "range(16)"), STOPWATCH_READY="0", STOPWATCH_CYCLES="3"
    )
    rows = [line.split() for line in lines]
    states = [int(row[5]) for row in rows if row[1] not in ("-1", "10")]
    assert states == sorted(states)  # 0, 1, 2, 3, 4, 11, 12, …: a cycle behind the other
    assert set(states) == {0, 1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24}
    assert all(states.count(10 * k + 2) >= 12 for k in range(3))
    assert states.count(11) == states.count(21) == 3  # the first steps of each do not count
    plain, ready = (timing_of("\n".join([*lines, ""]), state) for state in (PLAIN, READY))
    assert plain is not None and ready is not None
    assert (len(plain.phases_ms), len(ready.phases_ms)) == (6, 3)


@pytest.mark.slow  # a process that imports torch
def test_a_run_as_it_is_ends_after_its_seconds_however_many_turns_others_take(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.replace("range(6)", "range(10_000)")))
    plain, ready, ended = public_truth.timed_run(
        [sys.executable, str(script)], cwd=tmp_path, env=os.environ, folder=tmp_path / "log",
        seconds=1.0, ready=False, n_cycles=2,
    )  # fmt: skip
    assert plain is not None and ready is None
    assert plain.n_steps * plain.step_ms > 500.0  # of its second
    assert ended.seconds < public_truth.START_LIMIT_S / 2


@pytest.mark.slow  # a process that imports torch
def test_a_script_gets_ready_batches_once_they_are_due_and_epochs_keep_their_length(
    tmp_path: Path,
) -> None:
    printed_lines, lines = run_under_the_stopwatch(tmp_path, SCRIPT, STOPWATCH_READY="0")
    first, *later = (line.split() for line in printed_lines.splitlines())
    assert [int(n) for n in first] == list(range(10))  # as they are, for eleven steps
    assert [len(line) for line in (first, *later)] == [10] * 6
    assert [int(n) for n in later[-1]] == list(range(10))  # and again
    rows = [line.split() for line in lines]
    states = [
        int(row[5]) for row in rows if row[1] not in ("-1", "10")
    ]  # neither `iter` nor its end
    printed = [n for line in (first, *later) for n in line]
    ready = [n for n, state in zip(printed, states, strict=True) if state == 2]
    assert len(ready) >= 12
    assert len(set(ready)) == 4
    assert (states.count(1), states.count(3)) == (4, 3)
    assert states == sorted(states)
    assert set(states) == {0, 1, 2, 3, 4}


def test_a_loop_of_its_own_batches_is_judged_by_its_own_meter() -> None:
    case = public_cases.Case(
        name="x", clone="examples", folder="x", own_loop=True, meters=public_cases.WORDS
    )
    printed = "\n".join(f"| ms/batch {ms:5.2f} |" for ms in (90, 80, 40, 40, 40, 40))
    meters = public_table.meters_in(case, printed)
    assert meters == {"step_ms": pytest.approx(40.0)}
    row = said("compute", 0.0)
    row["said"]["step_ms"] = 44.0
    assert why_wrong(case, row | {"meters": meters}, None, FINE, DONE) == []
    row["said"]["step_ms"] = 80.0
    (wrong,) = why_wrong(case, row | {"meters": meters}, None, FINE, DONE)
    assert "by its own meter 40.0" in wrong
    (wrong,) = why_wrong(case, row | {"meters": None}, None, FINE, DONE)
    assert "no truth" in wrong


def test_a_loop_of_its_own_batches_that_prints_no_times_is_judged_by_its_verdict() -> None:
    (case,) = (case for case in public_cases.CASES if case.name == "time-sequence")
    assert case.own_loop and case.meters is None
    row = said("compute", 0.0)
    row["said"]["step_ms"] = 44.0
    assert why_wrong(case, row | {"meters": None}, None, FINE, DONE) == []
    row["said"]["bound"] = "input"
    (wrong,) = why_wrong(case, row | {"meters": None}, None, FINE, DONE)
    assert "its batches come from no loader" in wrong
    text = "train.py: no torch DataLoader was iterated in 2 backward passes"
    told = public_truth.Ended(code=1, output=text, seconds=1.0)
    assert why_wrong(case, {}, None, FINE, told) == []
    broken = public_truth.Ended(code=1, output="ValueError: no", seconds=1.0)
    assert why_wrong(case, {}, None, FINE, broken)


def test_a_script_with_nothing_to_measure_is_to_be_told_why() -> None:
    case = public_cases.Case(name="x", clone="examples", folder="x", refuses="takes no batch")
    told = public_truth.Ended(code=1, output="x.py: its loop takes no batch a step", seconds=1.0)
    other = public_truth.Ended(code=1, output="x.py: let it run longer", seconds=1.0)
    assert why_wrong(case, {}, None, FINE, told) == []
    assert why_wrong(case, {}, None, FINE, other) == ["not told why: x.py: let it run longer"]
