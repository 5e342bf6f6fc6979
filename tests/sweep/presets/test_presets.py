"""Every preset on simulated machines: its rows, what is skipped, what is shared, its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.wire.protocol import Observed, WindowDone
from loaderdoctor.report.console import console_text
from loaderdoctor.report.model import Trial as TrialRow
from loaderdoctor.settings import Settings
from loaderdoctor.sweep import Sweep
from loaderdoctor.sweep.presets import (
    MATRIX,
    PORTIONS,
    PRESETS,
    WHO_IS_FASTER,
    find_preset,
)
from loaderdoctor.sweep.presets.loading import LOADER, LOADER_ONLY, MODEL
from loaderdoctor.sweep.presets.model import Figures, Preset
from loaderdoctor.sweep.presets.published import (
    Found,
    Place,
    ceilings,
    claim_rows,
    preset_rows,
    row_settings,
    trials_of,
)
from loaderdoctor.sweep.report_rows import trial_rows
from loaderdoctor.tryout import Measurement, Options, Trial
from loaderdoctor.tryout.measuring import Equipment
from loaderdoctor.tryout.ranking import Ranking, rank
from tests.report import samples
from tests.tryout.simulator import SimulatedRun, Truth, observed

VERDICTS = {"agrees", "disagrees", "not separable from noise", "not testable here"}


def script_of(recipe: str, args: tuple[str, ...]) -> Script:
    return Script(script=f"{recipe}/train.py", args=args)


def planned(
    preset: Preset, *, device: str | None = None, recipe: str | None = "mnist"
) -> tuple[list[Trial], Observed]:
    seen = observed(device=device)
    place = Place(observed=seen, recipe=recipe, script_of=script_of, n_accelerators=1)
    return trials_of(preset, preset.rows(seen), place), seen


def swept(
    preset: Preset, truth: Callable[[Settings], Truth], *, device: str | None = None
) -> tuple[tuple[TrialRow, ...], Figures, Ranking]:
    """The preset over a simulated loop: rows of its recipe's own processes are left out."""
    trials, seen = planned(preset, device=device, recipe=None)
    script_run = SimulatedRun(truth, Truth(step_ms=10.0), noise=0.005, seed=1)
    sweep = Sweep(
        seen,
        trials,
        Options(budget_s=600.0, n_rounds=preset.n_rounds, keep_all=True),
        Equipment(script_run=script_run, clock=script_run.clock),
    )
    outcome = sweep.run()
    ranking = sweep.ranking()
    rows = preset_rows(
        preset,
        trial_rows(ranking, {}, {}),
        outcome.trials,
        ranking.results,
        has_accelerator=device is not None,
        tensor_cores={},
    )
    return rows, Figures(trials=outcome.trials, ranking=ranking), ranking


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
@pytest.mark.parametrize("device", [None, "cuda:0"])
@pytest.mark.parametrize("own_recipe", [True, False])
def test_every_row_is_a_trial_that_runs_is_shared_or_says_why_not(
    preset: Preset, device: str | None, own_recipe: bool
) -> None:
    trials, seen = planned(preset, device=device, recipe=preset.recipe if own_recipe else None)
    rows = preset.rows(seen)
    assert [trial.row for trial in trials[1:]] == list(rows)
    assert trials[0].row is None
    assert not trials[0].settings.changed()
    for trial in trials:
        if trial.status == "skipped":
            assert trial.reason
            assert trial.same_as is None
        if trial.same_as is not None:
            assert trial.same_as < trial.index
            other = trials[trial.same_as]
            assert other.same_as is None
            assert other.status == "ok"
            assert not trial.alive


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_names_are_unique_within_a_group_and_baselines_exist(preset: Preset) -> None:
    rows = preset.rows(observed())
    counts = Counter((row.group, row.name) for row in rows)
    assert max(counts.values()) == 1
    for row in rows:
        base = row.base or preset.baseline
        assert (row.group, base) in counts


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_fits_into_ten_minutes(preset: Preset) -> None:
    assert preset.budget_s <= 500.0  # start, reading traces and the report take the rest


def test_the_matrix_is_run_at_every_portion_with_its_settings_as_published() -> None:
    rows, _, _ = swept(WHO_IS_FASTER, lambda s: Truth(step_ms=10.0))
    main = [row for row in rows if row.row == "3" and "not sampled" not in (row.group or "")]
    assert [row.settings["portion"] for row in main] == list(PORTIONS)
    assert len(rows) == 1 + 2 * len(PORTIONS) * len(MATRIX)
    three = main[0].settings
    assert three["pin_memory"] is True
    assert three["non_blocking"] is True
    assert three["num_workers"] == 8
    assert three["prefetch_factor"] == 8
    assert three["background"] == "off"
    assert set(Settings().as_dict()) <= set(three)


def test_without_an_accelerator_pinning_changes_nothing_and_resident_is_skipped() -> None:
    rows, _, _ = swept(WHO_IS_FASTER, lambda s: Truth(step_ms=10.0))
    by_name = {row.row: (i, row) for i, row in enumerate(rows) if row.group == "10 %"}
    first = by_name["1"][0]
    for name in ("2", "10"):
        assert by_name[name][1].same_as == first
        assert by_name[name][1].step_ms == rows[first].step_ms
    assert by_name["7"][1].status == "ok"
    assert "the background thread only fetches batches" in (by_name["7"][1].note or "")
    assert by_name["11"][1].status == "skipped"
    assert "accelerator" in (by_name["11"][1].reason or "")


def test_the_control_group_is_run_again_without_sampling_host_memory() -> None:
    trials, seen = planned(WHO_IS_FASTER)
    script_run = SimulatedRun(lambda s: Truth(step_ms=10.0), Truth(step_ms=10.0))
    options = Options(budget_s=900.0, n_rounds=3, keep_all=True)
    Sweep(seen, trials, options, Equipment(script_run=script_run, clock=script_run.clock)).run()
    timed = [r for r in script_run.log if r.settings is not None and r.settings.portion]
    assert (
        Counter(r.host_memory for r in timed)[True] == Counter(r.host_memory for r in timed)[False]
    )


def test_epochs_are_as_long_as_their_portion_and_ratios_are_to_the_groups_own_baseline() -> None:
    def truth(settings: Settings) -> Truth:
        return Truth(step_ms=20.0 if settings.num_workers == 8 else 10.0)

    rows, figures, _ = swept(WHO_IS_FASTER, truth)
    small, large = (
        next(row for row in rows if row.row == "10" and row.group == group)
        for group in ("10 %", "70 %")
    )
    assert small.epoch_s is not None
    assert large.epoch_s is not None
    assert large.epoch_s / small.epoch_s == pytest.approx(7, rel=0.05)
    assert small.time_ratio == pytest.approx(1.0, abs=0.02)
    eight = next(row for row in rows if row.row == "4" and row.group == "10 %")
    assert eight.time_ratio == pytest.approx(2.0, rel=0.05)
    verdicts = {c["claim"]: c["verdict"] for c in claim_rows(WHO_IS_FASTER, figures)}
    assert verdicts["training time grows with the portion"] == "agrees"
    assert verdicts["the resident dataset is fastest"] == "not testable here"


def test_claims_agree_on_a_machine_that_behaves_as_published() -> None:
    def truth(settings: Settings) -> Truth:
        if settings.resident:
            return Truth(step_ms=4.0)
        workers = settings.num_workers or 0
        step_ms = 10.0 + 0.5 * workers
        if workers:
            step_ms += 0.3 if (settings.prefetch_factor == 8) != (workers == 8) else 0.0
        if settings.background == "device":
            step_ms -= 2.0 if settings.pin_memory else 1.0
        large = (settings.portion or 1.0) > 0.5
        if settings.pin_memory and settings.portion == PORTIONS[0]:
            step_ms -= 0.5
        if settings.non_blocking and not workers:
            step_ms += -0.6 if large else 0.3
        return Truth(step_ms=step_ms)

    _, figures, _ = swept(WHO_IS_FASTER, truth, device="cuda:0")
    claims = {c["claim"]: c for c in claim_rows(WHO_IS_FASTER, figures)}
    assert len(claims) == 11
    times = [c for name, c in claims.items() if "memory" not in name]
    assert {c["verdict"] for c in times} == {"agrees"}, times
    for name, claim in claims.items():
        if "GPU memory" in name:  # the simulator records none
            assert claim["verdict"] == "not testable here"
            assert claim["reason"]


def test_claims_disagree_where_workers_help() -> None:
    def truth(settings: Settings) -> Truth:
        return Truth(step_ms=10.0 - (settings.num_workers or 0))

    _, figures, _ = swept(WHO_IS_FASTER, truth, device="cuda:0")
    claims = {c["claim"]: c["verdict"] for c in claim_rows(WHO_IS_FASTER, figures)}
    assert claims["workers slow training"] == "disagrees"
    assert claims["fewer workers are faster"] == "disagrees"


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_every_claim_has_a_verdict_and_an_untestable_one_its_reason(preset: Preset) -> None:
    _, figures, ranking = swept(preset, lambda s: Truth(step_ms=(s.batch_size or 64) * 10.0 / 64))
    for claim in claim_rows(preset, figures):
        assert claim["verdict"] in VERDICTS
        if claim["verdict"] == "not testable here":
            assert claim["reason"]
        else:
            assert claim["ours"]
    assert ranking.recommended is None


def test_the_console_shows_the_published_table_before_the_claims() -> None:
    rows, figures, _ = swept(WHO_IS_FASTER, lambda s: Truth(step_ms=10.0))
    report = msgspec.structs.replace(
        samples.sweep(), trials=rows, claims=claim_rows(WHO_IS_FASTER, figures)
    )
    text = console_text(report, width=200)
    assert text.index("Trials, as published") < text.index("Published claims")
    assert "70 %, host memory not sampled" in text
    assert "=: as another row on this machine, run once." in text


def test_a_preset_that_is_misspelt_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(UsageError, match="workers-pinning"):
        find_preset("worker-pinning")


@pytest.mark.parametrize(("cpu_bf16", "device"), [(False, None), (True, None), (False, "cuda:0")])
def test_the_ladder_does_without_amp_where_a_cpu_would_emulate_it(
    cpu_bf16: bool, device: str | None
) -> None:
    ladder = find_preset("ladder")
    seen = observed(device=device)
    seen = msgspec.structs.replace(
        seen, environment=msgspec.structs.replace(seen.environment, cpu_bf16=cpu_bf16)
    )
    place = Place(observed=seen, recipe=ladder.recipe, script_of=script_of)
    by_name = {
        t.row.name: t for t in trials_of(ladder, ladder.rows(seen), place) if t.row is not None
    }
    emulated = not cpu_bf16 and device is None
    assert (by_name["AMP"].status == "skipped") == emulated
    assert ("no bfloat16 instructions" in (by_name["AMP"].reason or "")) == emulated
    above = by_name["2 workers"]
    assert above.status == "ok"
    assert above.settings.batch_size == 128
    assert bool(above.settings.amp) != emulated
    assert above.row is not None
    assert ("without AMP" in (above.row.note or "")) == emulated


def test_rungs_run_in_the_loop_and_if_isolated_as_options_of_the_recipe() -> None:
    ladder = find_preset("ladder")
    trials, seen = planned(ladder, device="cuda:0", recipe=ladder.recipe)
    assert {trial.place for trial in trials} == {"loop"}
    batch = next(trial for trial in trials if trial.row and trial.row.name == "batch 128")
    assert (batch.script, batch.settings.amp, batch.settings.batch_size) == (None, True, 128)
    place = Place(observed=seen, recipe=ladder.recipe, script_of=script_of, isolate=True)
    rungs = [t for t in trials_of(ladder, ladder.rows(seen), place) if t.row is not None]
    assert {trial.place for trial in rungs} == {"process"}
    batch = next(trial for trial in rungs if trial.row and trial.row.name == "batch 128")
    assert batch.script is not None
    assert batch.script.args == ("--amp", "--batch-size", "128")
    trials, _ = planned(ladder, device="cuda:0", recipe=None)  # a user's own script
    batch = next(trial for trial in trials if trial.row and trial.row.name == "batch 128")
    assert (batch.place, batch.settings.amp, batch.settings.batch_size) == ("loop", True, 128)


def test_rungs_keep_what_both_searches_found_the_later_over_the_earlier() -> None:
    ladder = find_preset("ladder")
    seen = observed(device="cuda:0")
    place = Place(
        observed=seen,
        recipe=ladder.recipe,
        script_of=script_of,
        found={
            "pinned, non_blocking": Found(settings=Settings(num_workers=4, prefetch_factor=8)),
            "fused optimizer": Found(settings=Settings(num_workers=12)),
        },
    )
    of = {t.row.name: t for t in trials_of(ladder, ladder.rows(seen), place) if t.row is not None}
    workers = {name: trial.settings.num_workers for name, trial in of.items()}
    assert workers["pinned, non_blocking"] == 2
    assert workers["what our search recommends"] == workers["fused optimizer"] == 4
    assert of["our search once more"].settings == Settings(num_workers=12, prefetch_factor=8).over(
        of["fused optimizer"].settings
    )
    shown = {n: row_settings(t, t.row) for n, t in of.items() if t.row is not None}
    columns = {name: (row["num_workers"], row["prefetch_factor"]) for name, row in shown.items()}
    assert columns["pinned, non_blocking"] == (2, None)  # as published
    assert columns["what our search recommends"] == columns["fused optimizer"] == (4, 8)
    assert columns["our search once more"] == (12, 8)
    failed = replace(place, found={"pinned, non_blocking": Found(settings=Settings(), why_not="y")})
    rungs = [t for t in trials_of(ladder, ladder.rows(seen), failed) if t.status == "skipped"]
    assert [t.row.name for t in rungs if t.row is not None] == ["what our search recommends"]
    assert rungs[0].reason == "y"


def test_a_busy_share_is_judged_with_the_noise_of_the_rows() -> None:
    def truth(settings: Settings) -> Truth:
        return Truth(step_ms=10.0)

    ladder = find_preset("ladder")
    _, figures, _ = swept(ladder, truth, device="cuda:0")
    at = {name: figures.index(name) for name in ("2 workers", "pinned, non_blocking")}
    before, after = (index for index in at.values() if index is not None)
    for share, verdict in (
        (0.88, "agrees"),
        (0.80, "not separable from noise"),
        (0.7, "disagrees"),
    ):
        seen = replace(figures, busy={before: 0.795, after: share})
        claim = next(c for c in claim_rows(ladder, seen) if "busy" in c["claim"])
        assert claim["verdict"] == verdict
        assert claim["ours"] == f"79.5% → {share:.1%}"
    unseen = next(c for c in claim_rows(ladder, figures) if "busy" in c["claim"])
    assert unseen["verdict"] == "not testable here"


def test_ddp_has_a_process_for_each_gpu_and_dataparallel_one_for_all() -> None:
    compute = find_preset("compute")
    seen = observed(device="cuda:0")
    place = Place(observed=seen, recipe="compute", script_of=script_of, n_accelerators=4)
    *_, parallel, ddp = trials_of(compute, compute.rows(seen), place)
    assert (parallel.status, ddp.status) == ("ok", "ok")
    assert parallel.script is not None
    assert ddp.script is not None
    assert (parallel.script.n_ranks, ddp.script.n_ranks) == (1, 4)
    assert parallel.script.args[-2:] == ("--parallel", "data_parallel")
    assert ddp.script.args[-2:] == ("--parallel", "ddp")
    # A loop of the user's is not wrapped.
    users = Place(observed=seen, recipe=None, script_of=script_of, n_accelerators=4)
    *_, parallel, ddp = trials_of(compute, compute.rows(seen), users)
    assert (parallel.status, ddp.status) == ("skipped", "skipped")


@pytest.mark.parametrize(
    ("kept", "again", "verdict"),
    [
        (22_020_616, 7_363_016, "agrees"),
        (22_020_616, 22_020_616, "disagrees"),
        (22_020_616, None, "not testable here"),
    ],
)
def test_on_a_cpu_checkpointing_is_judged_by_tensors_not_by_the_process(
    kept: int, again: int | None, verdict: str
) -> None:
    """The process's memory may well grow meanwhile: here it does, by a tenth."""
    compute = find_preset("compute")
    trials, _ = planned(compute, recipe="compute")
    for trial, n_bytes, host in zip(
        [t for t in trials if t.row is not None and t.row.group == "activations"],
        (kept, again),
        (500_000_000, 550_000_000),
        strict=True,
    ):
        assert trial.row is not None
        assert trial.row.tensor_memory
        window = WindowDone(
            id=1,
            mode="plain",
            status="ok",
            n_steps=2,
            host_step_ns=(10**7, 10**7),
            host_bytes=host,
            tensor_peak_bytes=n_bytes,
        )
        trial.measurements.append(Measurement(phase="rank", round=1, window=window, wall_s=1.0))
    ranking = rank(trials, own=Settings(), steps_per_epoch=100)
    (claim,) = [
        row
        for row in claim_rows(compute, Figures(trials=trials, ranking=ranking))
        if "checkpointing" in row["claim"]
    ]
    assert claim["verdict"] == verdict


def test_more_workers_that_deliver_less_are_not_said_to_suffice() -> None:
    def row(name: str, rate: float, group: str | None = LOADER) -> TrialRow:
        return TrialRow(
            settings={}, label=name, status="ok", row=name, group=group, samples_per_s=rate
        )

    rows = [row("0 workers", 100.0), row("4 workers", 900.0), row("8 workers", 300.0)]
    said = ceilings(LOADER_ONLY, [*rows, row(MODEL, 500.0, None)])
    assert said is not None
    assert "the loader alone gives that with 4 workers already (900" in said
