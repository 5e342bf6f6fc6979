"""What `loaderdoctor sweep` runs: the loop, the trials, how long. From the options to data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loaderdoctor.commands.launch import target_of
from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.wire.protocol import Observed, ProfilerSchedule
from loaderdoctor.recipes import Options as ScriptOptions
from loaderdoctor.recipes import Recipe, find, installed
from loaderdoctor.secrets import MASK, masked
from loaderdoctor.settings import AXES_BY_NAME
from loaderdoctor.sweep import grid
from loaderdoctor.sweep.grid import Means, asked_trials, default_trials, parse_grid
from loaderdoctor.sweep.presets import find_preset
from loaderdoctor.sweep.presets.loading import LOADER_ONLY, STORAGE, rows_with_path
from loaderdoctor.sweep.presets.model import Preset
from loaderdoctor.sweep.presets.published import Found, Place, trials_of
from loaderdoctor.tryout import Options, Row, Trial

DEFAULT_BUDGET_S = 120.0
# A whole sweep in fresh processes: each measurement starts an interpreter, torch and the script.
ISOLATED_BUDGET_S = 480.0
# It loads its own libraries of some hundred megabytes.
DALI_IMPORT_S = 120.0
_REASON_LENGTH = 200  # of what a damaged file may quote


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What the command line says. `None`: as the loop and the machine ask."""

    target: tuple[str, ...] = ()  # SCRIPT [ARGS]…; with `recipe` arguments for its script
    recipe: str | None = None  # a name, or a folder with a recipe.json
    as_module: bool = False
    grid: tuple[str, ...] = ()  # AXIS=VALUES
    preset: str | None = None
    loader_only: bool = False
    search: Literal["grid", "auto"] = "grid"
    isolate: bool = False
    resume: Path | None = None
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None
    rounds: int | None = None
    seed: int = 0
    n_ranks: int | None = None  # processes of a `ddp` trial; None: one for each device
    budget_s: float | None = None
    trial_limit_s: float | None = None
    once: bool = False  # don't run the user's script again where it ended early
    rerun: bool = False  # start the user's script again where a trial took it down
    no_ablation: bool = False
    profiler: ProfilerSchedule = field(default_factory=ProfilerSchedule)
    json_target: str | None = None  # a file, or "-" for stdout
    verbose: bool = False
    output: Path | None = None

    def saved(self) -> dict[str, Any]:
        """What another process needs to plan the same trials again; no secrets."""
        return {name: getattr(self, name) for name in _SAVED} | {"target": masked(self.target)}

    def resumed(self, saved: Mapping[str, Any], *, on_cluster: bool = False) -> SweepOptions:
        """The options of an interrupted sweep, with the output of this command line."""
        if on_cluster != (self.engine == "ray"):
            where = "on a cluster: give" if on_cluster else "on this machine: leave out"
            raise UsageError(f"--resume {self.resume}: it was measured {where} --engine ray.")
        if self.target or self.recipe or self.grid or self.preset or self.loader_only:
            raise UsageError("--resume goes on with the same sweep: give no target and no trials.")
        if self.output is not None:
            raise UsageError("--resume writes into the run folder it goes on with: no --output.")
        try:
            old = msgspec.convert({name: saved[name] for name in _SAVED}, type=_Saved)
        except (KeyError, msgspec.ValidationError) as error:
            reason = ascii(str(error))[1:-1][:_REASON_LENGTH]
            raise UsageError(
                f"--resume {self.resume}: not a sweep's options ({reason})."
            ) from error
        if any(MASK in word for word in old.target):
            raise UsageError(
                f"--resume {self.resume}: the script had arguments that look like secrets, which "
                "are not stored. Run the sweep again, or pass them in environment variables."
            )
        known = {name: getattr(old, name) for name in _SAVED}
        return replace(self, **{**known, "budget_s": self.budget_s or old.budget_s})


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Of SweepOptions, what decides the trials and how they are measured."""

    target: tuple[str, ...]
    recipe: str | None
    as_module: bool
    grid: tuple[str, ...]
    preset: str | None
    loader_only: bool
    search: Literal["grid", "auto"]
    isolate: bool
    rounds: Annotated[int, msgspec.Meta(ge=1)] | None
    seed: int
    budget_s: Annotated[float, msgspec.Meta(gt=0)] | None
    n_ranks: Annotated[int, msgspec.Meta(ge=1)] | None = None


_SAVED = _Saved.__struct_fields__


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str  # as the report names it
    script: Script
    axes: tuple[str, ...]  # what a sweep without a grid may vary
    recipe: str | None = None  # its name
    options: ScriptOptions = field(default_factory=dict)  # of the recipe: words for its script


def resolve(options: SweepOptions) -> Target:
    """The script to run. Raises UsageError that says what is missing."""
    preset = preset_of(options)
    _check_engine(options)
    recipe_name = options.recipe
    if recipe_name is None and not options.target and preset is not None:
        recipe_name = preset.recipe
    if recipe_name is not None:
        recipe = find(recipe_name).check()
        _check_no_script(options)
        script = _recipe_script(recipe, options.target)
        return Target(
            name=recipe.name,
            script=script,
            axes=recipe.sweeps,
            recipe=recipe.name,
            options=recipe.options,
        )
    if not options.target:
        raise UsageError("nothing to sweep: give --recipe NAME or SCRIPT [ARGS].")
    name, *args = options.target
    script = target_of(name, args, as_module=options.as_module)
    script.check("sweep")
    return Target(name=script.label, script=script, axes=tuple(AXES_BY_NAME))


def _check_no_script(options: SweepOptions) -> None:
    """A recipe has its own. Raises UsageError for another, which would be a word for that one."""
    word = next(iter(options.target), "")
    is_script = not word.startswith("-") and (Path(word).suffix == ".py" or Path(word).is_file())
    if options.as_module or is_script:
        raise UsageError(
            f"--recipe {options.recipe} and SCRIPT exclude each other: {word} would be a word for "
            "the recipe's own script. Give one of them."
        )


def _check_engine(options: SweepOptions) -> None:
    """What can't be spread over machines. Raises UsageError."""
    if options.engine == "local":
        if options.ray_address is not None:
            raise UsageError("--ray-address says which cluster --engine ray uses: give both.")
        return
    if options.search == "auto":
        raise UsageError(
            "--engine ray: --search auto compares all settings in one loop. Leave --engine ray out "
            "for it."
        )


def preset_of(options: SweepOptions) -> Preset | None:
    """The preset asked for; checks what goes together. Raises UsageError."""
    parse_grid(options.grid)  # a wrong word fails here, not after the script's start
    if options.loader_only and options.preset is not None:
        raise UsageError("--loader-only is itself an experiment: give no --preset.")
    preset = LOADER_ONLY if options.loader_only else None
    if options.preset is not None:
        preset = find_preset(options.preset)
    if preset is None:
        return None
    if options.grid and not _is_other_path(preset, options):
        raise UsageError(f"--preset {preset.name} has its own rows: give no --grid.")
    if options.search == "auto":
        raise UsageError("--search auto chooses among settings; a preset runs every row.")
    if options.loader_only and options.isolate:
        raise UsageError("--loader-only measures within one process: give no --isolate.")
    return preset


def trials(
    options: SweepOptions,
    target: Target,
    observed: Observed,
    *,
    found: Mapping[str, Found] | None = None,
    dali: str | None = None,
) -> list[Trial]:
    """Trial 0 and the others: of the preset, of the grid, or what suits this machine.

    `found` is what our own searches recommend (`searches`); `dali` is why it can't be used where
    the trials will run.
    """
    preset, means = preset_of(options), _means(options, target, observed, dali)
    if preset is not None:
        place = Place(
            observed=observed,
            recipe=target.recipe,
            script_of=lambda name, args: _script_of(name, args, target),
            n_accelerators=observed.n_devices,
            found=found or {},
            isolate=options.isolate,
            means=means,
        )
        return trials_of(preset, _rows(preset, options, observed), place)
    if options.grid:
        chosen = asked_trials(options.grid, observed)
    else:
        chosen = default_trials(observed, target.axes)
    place_of: Literal["loop", "process"] = "process" if options.isolate else "loop"
    planned = [Trial(index=i, settings=one, place=place_of) for i, one in enumerate(chosen)]
    for trial in planned:
        grid.place(trial, means)
    return planned


def _means(options: SweepOptions, target: Target, observed: Observed, dali: str | None) -> Means:
    """What there is for the axes that only the script itself can set."""
    compute = observed.compute
    return Means(
        script=target.script,
        recipe=target.recipe,
        options=target.options,
        n_devices=observed.n_devices,
        n_ranks=options.n_ranks,
        why_no_dali=dali,
        replicated=compute is not None and compute.n_replicas is not None,
    )


def why_no_dali(options: SweepOptions, python: str = sys.executable) -> str | None:
    """Why NVIDIA DALI can't be used here; None where it can, or nobody asks for it.

    It is imported, in a process.
    """
    if "dali" not in parse_grid(options.grid):
        return None
    if not installed("nvidia.dali"):
        return "DALI is not installed: pip install 'loaderdoctor[dali]'"
    try:
        done = subprocess.run(
            [python, "-c", "import nvidia.dali.plugin.pytorch"],
            capture_output=True,
            text=True,
            timeout=DALI_IMPORT_S,
        )
    except subprocess.TimeoutExpired:
        return f"DALI is installed, but was not imported within {DALI_IMPORT_S:.0f} s"
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return f"DALI is installed, but can't be imported: {said[-1] if said else done.returncode}"


def measuring(options: SweepOptions, trace_dir: Path) -> Options:
    preset = preset_of(options)
    return Options(
        budget_s=budget_s(options),
        seed=options.seed,
        n_rounds=options.rounds or (preset.n_rounds if preset is not None else None),
        trial_limit_s=options.trial_limit_s,
        trace_dir=trace_dir,
        profiler=options.profiler,
        search=options.search,
        keep_all=preset is not None,
        loader_only=options.loader_only,
    )


def budget_s(options: SweepOptions) -> float:
    if options.budget_s is not None:
        return options.budget_s
    preset = preset_of(options)
    if options.isolate:
        return ISOLATED_BUDGET_S
    return preset.budget_s if preset is not None else DEFAULT_BUDGET_S


def searches(options: SweepOptions, target: Target, observed: Observed) -> dict[str, Script]:
    """The scripts that our own searches start from, by the name of their row.

    Only for rows of a preset that want what was found, and in the preset's own recipe.
    """
    preset = preset_of(options)
    if preset is None or target.recipe != preset.recipe:
        return {}
    rows = {row.name: row for row in preset.rows(observed)}
    sources = [row.searched_from for row in rows.values() if row.searched_from is not None]
    return {
        source: replace(target.script, args=(*target.script.args, *(rows[source].args or ())))
        for source in sources
    }


def _rows(preset: Preset, options: SweepOptions, observed: Observed) -> tuple[Row, ...]:
    if _is_other_path(preset, options) and options.grid:
        return rows_with_path(str(parse_grid(options.grid)["storage"][0]))
    return preset.rows(observed)


def _is_other_path(preset: Preset, options: SweepOptions) -> bool:
    """`--preset storage --grid storage=PATH` names the other path of that preset."""
    grid = parse_grid(options.grid)
    return preset is STORAGE and set(grid) == {"storage"} and len(grid["storage"]) == 1


def _script_of(recipe_name: str, args: tuple[str, ...], target: Target) -> Script:
    """A recipe's script; the words the user gave go to the loop's own recipe only."""
    if recipe_name == target.recipe:
        return replace(target.script, args=(*target.script.args, *args))
    recipe = find(recipe_name).check()
    return _recipe_script(recipe, args)


def _recipe_script(recipe: Recipe, args: tuple[str, ...]) -> Script:
    """Its script with the recipe's own words, which keep it running, before the user's."""
    words = (*recipe.args, *args)
    return Script(script=str(recipe.script), args=words, n_added_args=len(recipe.args))
