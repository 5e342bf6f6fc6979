"""What `campaign.py` measures: programs of this folder, with their options, and the room they need.

Seconds are those of an H200 and CPUs of its machine, a process of which starts in ten.
"""

from __future__ import annotations

from dataclasses import dataclass

# Loops of loops.py: those that want as many CPUs as they have workers, or all that there are;
# others that need a GPU for themselves; and those that use a fiftieth of one, three at a time.
LOOPS = {
    "truth-16": "half_overlap,pinned_same_stream,side_stream_overlap,pageable_big_copy,uint8_copy,"
    "amp_resnet50,several_copies,pinned_blocking,pageable_nonblocking,grad_accumulation,"
    "enough_workers",
    "truth-12": "item_every_step,accumulated_copies,side_stream_starved,half_fed,fed_by_a_thread,"
    "main_process_photos,launch_bound_tiny,background_gil,storage_main_process,"
    "respawn_each_epoch,gpu_resident",
    "light-1": "storage_bound,sync_loader_decode,collate_bound",
    "light-2": "item_starved,one_slow_sample,recreated_iterator",
    "light-3": "work_and_wait,head_of_line,work_between_steps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Programs that are measured together. `commands` run one after the other, or all at once."""

    name: str
    seconds: int  # that it takes; it is stopped when half as many again are over
    cpus: int
    gpus: int = 0
    at_once: bool = False  # each on its share of the CPUs
    commands: tuple[str, ...]  # of a shell; $PART is its folder, $CLONES what --clones says

    @property
    def needs_clones(self) -> bool:
        return any("$CLONES" in command for command in self.commands)


def _truth(name: str) -> str:
    return (
        "python3 benchmarks/truth.py --budget 12 --rounds 4 --seconds 5"
        f" --json $PART/{name}.json --reports $PART/{name} --only {LOOPS[name]}"
    )


def _sweeps(**seconds: int) -> tuple[str, ...]:
    """Presets; `loader_only` is one of the recipe `mnist`."""
    return tuple(
        "python3 -m loaderdoctor sweep "
        + ("--loader-only --recipe mnist" if name == "loader-only" else f"--preset {name}")
        + f" --budget {budget} --output $PART/runs/{name}"
        for name, budget in ((name.replace("_", "-"), budget) for name, budget in seconds.items())
    )


def _search(recipe: str) -> Part:
    """Its budget gives every one of 34 settings four rounds or five."""
    command = f"python3 benchmarks/search.py --recipes {recipe} --budget 280 --json $PART/rows.json"
    return Part(name=f"search-{recipe}", seconds=500, cpus=16, gpus=1, commands=(command,))


def _tests(marker: str, where: str) -> str:
    """Named as they end, so that what a part that is stopped had passed is known."""
    return f"python3 -m pytest -v -s -p no:cacheprovider -m {marker} --durations=10 {where}"


def _slow(name: str, where: str) -> Part:
    return Part(name=f"slow-{name}", seconds=540, cpus=2, commands=(_tests("slow", where),))


def _audit_gpu(name: str, loops: str) -> Part:
    """Half of them: each takes 52 s."""
    command = f"{AUDIT} --kind gpu --only {loops} --budget 15 --rounds 3 --seconds 1"
    return Part(name=name, seconds=525, cpus=3, gpus=1, commands=(command,))


def _alarms_gpu(name: str, loops: str) -> Part:
    """Half of them: 48 took 500 s."""
    command = f"{ALARMS} --kind gpu --only {loops} --jobs 6 --cpus-each 2 --on-gpu 2"
    return Part(name=name, seconds=530, cpus=12, gpus=1, commands=(command,))


def _public_gpu(script: str) -> Part:
    """One script: its truth, its diagnosis, and its first advice followed by hand."""
    command = (
        f"{PUBLIC} --only {script} --device cuda --advice --budget 45 --rounds 1 --cycles 2"
        " --seconds 8"
    )
    return Part(name=f"public-{script}", seconds=300, cpus=8, gpus=1, commands=(command,))


AUDIT = "python3 benchmarks/audit.py audit --seed 15 --json $PART/rows.jsonl"
ALARMS = "python3 benchmarks/audit.py false-alarms --budget 10 --json $PART/rows.jsonl"
DLIO = "python3 benchmarks/dlio.py --cpus-each 4 --data /dev/shm --json $PART/rows.jsonl"
PUBLIC = 'python3 benchmarks/public_scripts.py "$CLONES" --json $PART/rows.jsonl'
PARTS = (
    Part(
        name="tests",
        seconds=280,
        cpus=2,
        gpus=1,
        commands=(
            _tests("gpu", "tests"),
            "python3 benchmarks/hook_overhead.py --device cuda",
            "python3 benchmarks/hook_overhead.py",
        ),
    ),
    _audit_gpu("audit-gpu-1", "0-20"),
    _audit_gpu("audit-gpu-2", "21-39"),
    Part(name="truth-16", seconds=550, cpus=16, gpus=1, commands=(_truth("truth-16"),)),
    Part(name="truth-12", seconds=550, cpus=12, gpus=1, commands=(_truth("truth-12"),)),
    Part(
        name="audit-cpu",
        seconds=525,
        cpus=12,
        commands=(f"{AUDIT} --kind cpu --jobs 4 --cpus-each 3 --rounds 6 --seconds 2",),
    ),
    _public_gpu("torchvision-classification"),
    _public_gpu("imagenet"),
    _public_gpu("timm-train"),
    Part(
        name="uint8",
        seconds=160,
        cpus=10,  # it has eight workers
        gpus=1,
        commands=(
            "python3 benchmarks/prescription.py images_as_floats --budget 30 --turns 3 --seconds 4"
            " --runs $PART/runs --json $PART/rows.json",
        ),
    ),
    Part(
        name="light",
        seconds=160,
        cpus=15,
        gpus=1,
        at_once=True,
        commands=(_truth("light-1"), _truth("light-2"), _truth("light-3")),
    ),
    Part(
        name="tests-2",
        seconds=350,
        cpus=8,
        gpus=2,
        commands=(
            _tests(
                "gpu",
                "tests/instrument/session/test_ranks_gpu.py"
                " tests/instrument/session/test_compute_watch.py"
                " tests/commands/sweep/test_command_jobs.py",
            ),
        ),
    ),
    Part(
        name="ranks",
        seconds=250,
        cpus=16,
        gpus=2,
        commands=(
            "python3 benchmarks/ranks.py --budget 15 --json $PART/rows.json",
            "python3 -m loaderdoctor sweep --recipe compute --grid ddp=data_parallel,ddp --rounds 3"
            " --budget 90 --output $PART/runs/ddp -- --case parallel",
        ),
    ),
    Part(
        name="tune",
        seconds=470,
        cpus=12,
        commands=(
            "python3 benchmarks/tune_vs_sweep.py --jobs 3 --rounds 2 --json $PART/rows.json",
        ),
    ),
    Part(
        name="alarms-cpu",
        seconds=500,
        cpus=12,
        commands=(f"{ALARMS} --kind cpu --jobs 6 --cpus-each 2",),
    ),
    _alarms_gpu("alarms-gpu-1", "0-99"),
    _alarms_gpu("alarms-gpu-2", "100-199"),
    Part(
        name="advice",
        seconds=500,
        cpus=6,
        gpus=1,
        commands=(
            "python3 benchmarks/prescription.py --budget 30 --turns 3 --seconds 4"
            " --json $PART/rows.json",
        ),
    ),
    _search("cifar10-mobilenetv2"),
    _search("mnist"),
    _search("tensors"),
    _search("tokens"),
    Part(
        name="ladder",
        seconds=450,
        cpus=16,
        gpus=1,
        commands=_sweeps(ladder=380),  # more than half of it for its two searches
    ),
    Part(
        name="isolate",
        seconds=380,
        cpus=16,
        gpus=1,
        commands=("python3 benchmarks/isolate.py --budget 75 --json $PART/rows.json",),
    ),
    Part(
        name="presets-gpu",
        seconds=270,
        cpus=10,
        gpus=1,
        commands=_sweeps(who_is_faster=120, workers_pinning=60, prefetchers=60),
    ),
    Part(
        name="dlio-1",
        seconds=330,
        cpus=16,
        commands=(f"{DLIO} --budget 35 --seconds 20 --only unet3d-*,resnet50-*,cosmoflow-*",),
    ),
    Part(
        name="dlio-2",
        seconds=330,
        cpus=16,
        commands=(
            f"{DLIO} --budget 60 --seconds 30 --only"
            " bert-v100,dlrm,megatron-deepspeed,default,unet3d-starved,small-files,csv",
        ),
    ),
    Part(
        name="public-cpu",
        seconds=540,
        cpus=16,
        commands=(f"{PUBLIC} --jobs 8 --cpus-each 2 --budget 45 --seconds 8",),
    ),
    Part(name="presets-1", seconds=390, cpus=2, commands=_sweeps(who_is_faster=370)),
    Part(name="presets-2", seconds=410, cpus=2, commands=_sweeps(ladder=390)),
    Part(
        name="presets-3",
        seconds=400,
        cpus=2,
        commands=_sweeps(workers_pinning=100, prefetchers=80, reuse=60, storage=100),
    ),
    Part(
        name="presets-4",
        seconds=400,
        cpus=2,
        commands=_sweeps(preprocessing=190, loader_only=180),
    ),
    Part(name="presets-5", seconds=330, cpus=2, commands=_sweeps(compute=300)),
    _slow("causes", "tests/scripts/test_[a-m]*.py"),
    _slow("outside", "tests/scripts/test_[n-r]*.py"),
    _slow("shapes", "tests/scripts/test_s[a-s]*.py"),
    _slow("starved", "tests/scripts/test_st*.py"),
    _slow("tuned", "tests/scripts/test_t*.py"),
    _slow("instrument", "tests/instrument"),
    _slow("faults", "tests/faults tests/proving tests/recipes tests/tuning tests/tryout"),
    _slow("commands", "tests/commands tests/sweep tests/advice tests/report tests/test_api.py"),
    _slow("trace", "tests/trace tests/attribution tests/benchmarks tests/fuzz tests/security"),
    Part(
        name="frameworks",
        seconds=400,
        cpus=2,
        commands=(_tests("frameworks", "tests/frameworks tests/instrument/dataset"),),
    ),
)
