"""Which settings a sweep tries: what suits this machine, or what the user asked for.

Trial 0 is always `Settings()`: the loop's own settings, nothing changed. The others are complete
enough for `invalid_reason`, and none means the same as the loop's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loaderdoctor.combinations import combinations
from loaderdoctor.errors import UsageError
from loaderdoctor.facts import AS_IS, meaning, own_settings
from loaderdoctor.instrument.command.launch_config import Target as Script
from loaderdoctor.instrument.wire.protocol import Observed
from loaderdoctor.recipes import Options
from loaderdoctor.settings import AXES, AXES_BY_NAME, Settings, Value, whole_number
from loaderdoctor.tryout import Trial

Grid = Mapping[str, tuple[Value, ...]]

# Workers that wait for storage may exceed the CPUs; half as many again shows whether they do.
BEYOND_CPUS = 1.5
# A range written by mistake (0:5000) must not become a day of trials.
MAX_VALUES = 200
MAX_TRIALS = 2000


def worker_counts(usable_cpus: float) -> tuple[int, ...]:
    """0, 1, 2, 4, … up to the usable CPUs, those themselves, and half as many again."""
    cpus = max(1, math.floor(usable_cpus))
    doubled = [2**power for power in range(cpus.bit_length()) if 2**power <= cpus]
    return tuple(sorted({0, *doubled, cpus, math.ceil(cpus * BEYOND_CPUS)}))


def default_trials(
    observed: Observed, axes: Sequence[str] = tuple(AXES_BY_NAME)
) -> tuple[Settings, ...]:
    """Trial 0 and a set for this machine: about 15 on two cores, about 30 with an accelerator.

    `axes` are those that mean something for this loop; the others stay as they are.
    Not the full product: each family varies what can interact (workers with prefetch and with
    persistence, pinning with non_blocking, a background thread with and without workers).
    """
    counts = worker_counts(observed.environment.usable_cpus)
    accelerator = observed.device is not None
    families = _accelerator_families(counts) if accelerator else _cpu_families(counts)
    wanted = [{axis: v for axis, v in family.items() if axis in axes} for family in families]
    return _trials([family for family in wanted if family], observed)


def _cpu_families(counts: tuple[int, ...]) -> tuple[Grid, ...]:
    some = tuple(n for n in counts if n)
    return (
        {"num_workers": (0,), "background": ("off", "host")},
        {"num_workers": some, "prefetch_factor": (2, 4), "persistent_workers": (False, True)},
        {
            "num_workers": some[:2],
            "prefetch_factor": (2,),
            "persistent_workers": (True,),
            "background": ("host",),
        },
    )


def _accelerator_families(counts: tuple[int, ...]) -> tuple[Grid, ...]:
    some = tuple(n for n in counts if n)
    middle = some[len(some) // 2 :][:2]
    pinned: Grid = {"pin_memory": (True,), "non_blocking": (True,)}
    workers: Grid = {"prefetch_factor": (2,), "persistent_workers": (True,)}
    return (
        {"num_workers": counts, **workers, "pin_memory": (False,), "non_blocking": (False,)},
        {"num_workers": counts, **workers, **pinned},
        {"num_workers": some, **workers, **pinned, "prefetch_factor": (4,)},
        {
            "num_workers": (0, *middle),
            **workers,
            "pin_memory": (True,),
            "non_blocking": (False,),
        },
        {"num_workers": middle, **workers, **pinned, "persistent_workers": (False,)},
        {"num_workers": (0, *middle), **workers, **pinned, "side_stream": (True,)},
        {
            "num_workers": (0,),
            "pin_memory": (False, True),
            "non_blocking": (False,),
            "background": ("host", "device"),
        },
        {"num_workers": middle[:1], **workers, **pinned, "background": ("device",)},
        {"num_workers": (0,), "resident": (True,)},
    )


def asked_trials(words: Sequence[str], observed: Observed) -> tuple[Settings, ...]:
    """Trial 0 and every valid combination of `AXIS=VALUES` words; other axes stay as they are.

    Raises UsageError for words that don't parse, and where no combination is valid here.
    """
    grid = {name: _each(name, values, observed) for name, values in parse_grid(words).items()}
    own = own_settings(observed)
    if "num_workers" not in grid and any(AXES_BY_NAME[name].needs_workers for name in grid):
        # `combinations` must know the workers to tell which values mean anything.
        grid = {"num_workers": (own.num_workers,), **grid}
    trials = _trials((grid,), observed)
    if len(trials) == 1:
        raise UsageError(
            f"--grid {' '.join(words)}: no combination that is valid on this machine differs from "
            "the loop's own settings. Worker settings need num_workers > 0; pin_memory, "
            "non_blocking, side_stream and resident need an accelerator."
        )
    if len(trials) > MAX_TRIALS:
        raise UsageError(
            f"--grid {' '.join(words)}: more than {MAX_TRIALS:,} combinations. Name fewer values."
        )
    return trials


def _each(name: str, values: tuple[Value, ...], observed: Observed) -> tuple[Value, ...]:
    """The values, with `each` written out for this loop: each transform off, each input alone."""
    if "each" not in values:
        return values
    loader = observed.main_loader
    found: tuple[str, ...] = ()
    if loader is not None and name == "augment":
        found = tuple(f"no-{transform}" for transform in loader.augmentations)
    elif loader is not None and name == "fields":
        found = tuple(dict.fromkeys(field_name(tensor.path) for tensor in loader.batch))
    if not any(found):
        what = {
            "augment": "no transform that could be left out was found in the dataset",
            "fields": "the batch is a single tensor",
        }[name]
        raise UsageError(f"--grid {name}=each: {what}.")
    rest = tuple(value for value in values if value != "each")
    return tuple(dict.fromkeys((*rest, *found)))


def field_name(path: str) -> str:
    """The input of a batch that holds the tensor at this path: `['image']` is image, `[0]` is 0."""
    match = re.match(r"""\[['"](.+?)['"]\]|\[(\d+)\]|\.(\w+)""", path)
    return next((part for part in match.groups() if part is not None), "") if match else ""


def _trials(families: Iterable[Grid], observed: Observed) -> tuple[Settings, ...]:
    own = own_settings(observed)
    seen = {meaning(AS_IS, own)}
    trials = [AS_IS]
    for settings in _combined(families, has_accelerator=observed.device is not None):
        if settings.batch_size == own.batch_size:
            settings = replace(settings, batch_size=None)  # no change, no mark
        if (full := meaning(settings, own)) not in seen:
            seen.add(full)
            trials.append(settings)
        if len(trials) > MAX_TRIALS:
            break  # three long ranges make millions
    return tuple(trials)


def _combined(families: Iterable[Grid], *, has_accelerator: bool) -> Iterator[Settings]:
    for family in families:
        yield from combinations(family, has_accelerator=has_accelerator)


def parse_grid(words: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """`num_workers=0,2,4`, `num_workers=0:50:5` (end included), `pin_memory=true,false`.

    Raises UsageError that names the word and what is accepted.
    """
    grid: dict[str, tuple[Value, ...]] = {}
    for word in words:
        name, separator, text = word.partition("=")
        axis = AXES_BY_NAME.get(name.strip())
        if not separator or axis is None:
            names = ", ".join(known.name for known in AXES)
            raise UsageError(f"--grid {word}: write AXIS=VALUES, where AXIS is one of {names}.")
        if axis.name in grid:
            raise UsageError(f"--grid {word}: {axis.name} is given twice; write its values once.")
        values: list[Value] = []
        for part in text.split(","):
            if axis.kind in ("int", "share") and ":" in part:
                values += [axis.parse(str(n)) for n in _range(word, part)]
            elif part.strip():
                values.append(axis.parse(part))
        if not values:
            raise UsageError(f"--grid {word}: no values. Write for example num_workers=0,2,4.")
        if len(values) > MAX_VALUES:
            raise UsageError(f"--grid {word}: {len(values):,} values, at most {MAX_VALUES}.")
        grid[axis.name] = tuple(dict.fromkeys(values))
    return grid


def _range(word: str, part: str) -> range:
    """`start:end` or `start:end:step`, the end included where the steps meet it."""
    read = [whole_number(piece.strip()) for piece in part.split(":")]
    numbers = [number for number in read if number is not None]
    if len(read) not in (2, 3) or len(numbers) < len(read):
        raise UsageError(f"--grid {word}: a range is start:end or start:end:step, as 0:50:5.")
    start, end, step = (*numbers, 1)[:3]
    if step < 1 or end < start:
        raise UsageError(f"--grid {word}: a range goes up, in steps of 1 or more, as 0:50:5.")
    if (n_values := (end - start) // step + 1) > MAX_VALUES:  # before they are written out
        raise UsageError(f"--grid {word}: {n_values:,} values, at most {MAX_VALUES}.")
    return range(start, end + 1, step)


# Axes that only the script itself can set, `ddp` and `dali`: which trials run, how, and why not.
#
# A model is wrapped in DistributedDataParallel, and NVIDIA DALI takes the place of a loader, by a
# change of the script. Recipes have options for that, which their recipe.json names; such a trial
# runs in its own process with these words. A script of the user's that trains as a job under
# torch's launcher needs no option for `ddp=ddp`: it is started as one, and whether its ranks form a
# group is seen there.

BY_SCRIPT = tuple(axis.name for axis in AXES if axis.where == "script")


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What there is for these axes."""

    script: Script  # the sweep's own
    recipe: str | None = None
    options: Options = field(default_factory=dict)  # of the recipe
    n_devices: int = 0
    n_ranks: int | None = None  # as asked for; None: one for each device
    why_no_dali: str | None = None
    replicated: bool = False  # the loop as it is calls a DataParallel

    @property
    def ranks(self) -> int:
        """Processes of a `ddp` trial."""
        return self.n_devices if self.n_ranks is None else self.n_ranks


def place(trial: Trial, means: Means) -> None:
    """Give the trial the script that does what its settings say, or skip it with the reason."""
    asked = {
        name: value
        for name, value in trial.settings.changed().items()
        if name in BY_SCRIPT and (means.replicated or not AXES_BY_NAME[name].is_idle(value))
    }
    if trial.status != "ok" or not asked:
        return
    script, reason = means.script, None
    for name, value in asked.items():
        words = means.options.get(name, {}).get(typed(value))
        launched = name == "ddp" and value == "ddp"
        if words is None and launched and means.recipe is None:
            words = ()  # as torch's launcher starts it: see `job`
        reason = _missing(name, value, means) or (None if words is not None else _why(name, means))
        if reason is not None:
            trial.fail("skipped", reason)
            return
        script = replace(
            script,
            args=(*script.args, *(words or ())),
            n_ranks=means.ranks if launched else script.n_ranks,
        )
    trial.script, trial.place = script, "process"


def typed(value: Value) -> str:
    """A value as a user types it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _missing(name: str, value: Value, means: Means) -> str | None:
    if name == "dali":
        return means.why_no_dali
    there = "there is 1" if means.n_devices == 1 else f"there are {means.n_devices}"
    if value == "data_parallel" and means.n_devices < 2:
        return f"DataParallel needs two GPUs; {there}"
    if value == "ddp" and means.ranks < 2:
        return f"DDP needs two GPUs; {there}" if means.n_ranks is None else "DDP needs two ranks"
    return None


def _why(name: str, means: Means) -> str:
    """Why this script can't be told to do it."""
    if means.recipe is not None:
        return f"the script of recipe {means.recipe} has no option for it"
    if name == "dali":
        return "DALI takes the place of the script's own loader: a change of the script"
    return "wrapping the model, or no longer wrapping it, is a change of the script"
