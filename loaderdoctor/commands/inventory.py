"""`loaderdoctor env` and `recipes`: what this machine offers, and the reference loops for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loaderdoctor import __version__
from loaderdoctor.attribution.cpu import BUSY_SHARE, cpu_facts
from loaderdoctor.instrument.system.cpu_use import CpuMeter
from loaderdoctor.instrument.system.machine import Machine, look, usable_cpus
from loaderdoctor.instrument.wire.protocol import WindowDone
from loaderdoctor.recipes import Recipe, all_recipes

# Importing torch from a cold disk takes up to half a minute.
TORCH_TIMEOUT_S = 90.0
# Runs in another process: a broken CUDA driver must not take the command with it.
_ASK_TORCH = """
import json, multiprocessing, torch
gpus = []
if torch.cuda.is_available():
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        gpus.append(f"{p.name} ({p.total_memory / 2**30:.0f} GiB)")
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "hip": torch.version.hip,
    "gpus": gpus,
    "n_threads": torch.get_num_threads(),
    "start_method": multiprocessing.get_start_method(),
}))
"""


# Long enough for ticks of 10 ms.
LOAD_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What else runs on the machine."""

    other_cores: float | None  # CPUs, of the usable ones, that other programs keep busy
    averages: tuple[float, float, float] | None  # of the whole machine; None: no such figure


def look_at_load(seconds: float = LOAD_S) -> Load:
    meter = CpuMeter()
    time.sleep(seconds)
    window = WindowDone(id=0, mode="plain", status="ok", cpu=meter.since())
    facts = cpu_facts([window], usable_cpus())
    try:
        averages = os.getloadavg()
    except (AttributeError, OSError):
        averages = None
    return Load(other_cores=facts.other_cores if facts is not None else None, averages=averages)


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a fresh process with torch says about itself."""

    version: str
    cuda: str | None
    hip: str | None
    gpus: tuple[str, ...]
    n_threads: int
    start_method: str


def env(console: Console | None = None) -> int:
    """Print the machine and torch, one fact a line. Returns the exit code."""
    console = console or Console(markup=False)
    machine = look()
    table = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, value in (*machine_rows(machine, look_at_load()), *torch_rows(ask_torch())):
        table.add_row(name, value)
    console.print(table)
    return 0


def ask_torch(command: tuple[str, ...] = (sys.executable, "-c", _ASK_TORCH)) -> TorchFacts | str:
    """Facts from a short process that imports torch; a sentence where it can't tell."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TORCH_TIMEOUT_S:.0f} s (is the GPU driver hung?)"
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        return f"can't be used: {lines[-1]}"
    try:
        return msgspec.json.decode(answer.stdout.strip().splitlines()[-1], type=TorchFacts)
    except (IndexError, msgspec.DecodeError):
        return f"gave no readable answer: {json.dumps(answer.stdout[-200:])}"


def machine_rows(machine: Machine, load: Load | None = None) -> list[tuple[str, str]]:
    """(name, value) of each fact, as text; "not known" for what the system doesn't tell."""
    return [
        ("loaderdoctor", f"{__version__} on Python {sys.version.split()[0]}{_free_threaded()}"),
        ("system", machine.system),
        ("usable CPUs", _cpus(machine)),
        ("load", _load(machine, load)),
        ("memory", _memory(machine)),
        ("swap used", _amount(machine.swap_used_bytes, machine.swap_total_bytes)),
        ("/dev/shm free", _amount(machine.shm_free_bytes, machine.shm_total_bytes)),
        ("open files", f"{machine.open_files_limit:,}" if machine.open_files_limit else "no limit"),
        ("GPUs (driver)", _gpus(machine)),
    ]


def torch_rows(facts: TorchFacts | str) -> list[tuple[str, str]]:
    """(name, value) of what torch says."""
    if isinstance(facts, str):
        return [("torch", facts)]
    built = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "CPU only"
    return [
        ("torch", f"{facts.version} ({built})"),
        ("torch sees", ", ".join(facts.gpus) or "no accelerator"),
        ("torch threads", str(facts.n_threads)),
        ("worker start", f"{facts.start_method} by default"),
    ]


def _free_threaded() -> str:
    """Of a build without the interpreter lock, and whether something imported has put it back."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return ""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return f", free-threaded{' with the lock on' if locked else ''}"


def _cpus(machine: Machine) -> str:
    limits = []
    if machine.quota_cpus is not None:
        limits.append(f"cgroup quota {machine.quota_cpus:g}")
    if machine.affinity_cpus is not None:
        limits.append(f"affinity {machine.affinity_cpus}")
    if machine.logical_cpus is not None:
        limits.append(f"the machine has {machine.logical_cpus}")
    if machine.physical_cores is not None:
        limits.append(f"{machine.physical_cores} physical cores")
    return f"{machine.usable_cpus:g} ({', '.join(limits)})"


def _load(machine: Machine, load: Load | None) -> str:
    if load is None or load.other_cores is None:
        text = "what other programs use is not known"
    else:
        share = load.other_cores / machine.usable_cpus if machine.usable_cpus else 0.0
        text = f"other programs use {load.other_cores:.1f} of the usable CPUs"
        if share >= BUSY_SHARE:
            text += ": busy, so times measured now are those with this other load"
    averages = load.averages if load is not None else None
    if averages is not None:
        text += "; load average " + ", ".join(f"{x:.2f}" for x in averages) + " (1, 5, 15 minutes)"
    return text


def _memory(machine: Machine) -> str:
    text = f"{_gib(machine.memory_available_bytes)} available of {_gib(machine.memory_total_bytes)}"
    if machine.memory_limit_bytes is not None:
        text += f", cgroup limit {_gib(machine.memory_limit_bytes)}"
    return text


def _amount(part: int | None, whole: int | None) -> str:
    if part is None or whole is None:
        return "not known"
    return f"{_gib(part)} of {_gib(whole)}" if whole else "none"


def _gpus(machine: Machine) -> str:
    if not machine.gpus:
        return "none found (nvidia-smi)"
    return ", ".join(
        f"{gpu.name} ({_gib(gpu.memory_bytes)})" if gpu.memory_bytes else gpu.name
        for gpu in machine.gpus
    )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"


def recipes(console: Console | None = None) -> int:
    """List every recipe with what it needs. Returns the exit code."""
    console = console or Console(markup=False)
    found = all_recipes()
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("recipe", no_wrap=True)
    table.add_column("runs here", no_wrap=True)
    table.add_column("what it is")
    for recipe in found:
        table.add_row(recipe.name, _ready(recipe), _about(recipe))
    console.print(table)
    console.print(
        Text(
            "\nloaderdoctor sweep --recipe NAME   tries every combination of loader settings\n"
            "loaderdoctor sweep --recipe FOLDER runs your own (docs/recipes.md)"
        )
    )
    return 0


def _ready(recipe: Recipe) -> Text:
    if not recipe.missing:
        return Text("yes", style="green")
    return Text(f"needs {', '.join(recipe.missing)}", style="yellow")


def _about(recipe: Recipe) -> Text:
    return Text.assemble(recipe.summary, "\n", (str(recipe.script), "dim"))
