"""Everything that takes a GPU or many CPUs, side by side on the machine that there is.

    python benchmarks/campaign.py FOLDER [--seconds 560] [--only NAME,…] [--not NAME,…]
                                         [--clones FOLDER]
    python benchmarks/campaign.py --list

Each part gets CPUs of its own, and GPUs of its own where it names any; the rest see none. Parts
start in the order of --list (or --only) as soon as there is room for them and time left, so ten
minutes of a machine do what they can; those without a GPU leave room for the next that needs one.
The last line names what had no time: the next call's --only, at the same revision. A part that
fails keeps no other from running; the exit code says whether one did. After --seconds everything
still running is stopped, what it has written kept. Text of a part goes to FOLDER/NAME/out.txt,
what programs read next to it.

Public scripts need --clones (`public_scripts.py`); `dlio` what `dlio.py` says.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from campaign_parts import PARTS, Part

ROOT = Path(__file__).parents[1]
GRACE_S = 5.0  # from SIGTERM to SIGKILL
LEAST_SHARE = (
    0.6  # of its seconds that a part must have left to begin: it keeps what it has written
)


@dataclass(slots=True)
class Running:
    """A part at work: one process group for each of its commands that run at once."""

    part: Part
    cpus: list[int]
    gpus: list[str]
    groups: list[subprocess.Popen[bytes]]
    temporary: str
    began: float
    until: float

    def exit_code(self) -> int | None:
        codes = [group.poll() for group in self.groups]
        return None if None in codes else next((c for c in codes if c), 0)

    def end(self) -> None:
        """Ends what still runs, what it started included, and drops its temporary files."""
        for what, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
            for group in self.groups:
                if group.poll() is None:
                    os.killpg(group.pid, what)
            deadline = time.monotonic() + (seconds or 60.0)
            while self.exit_code() is None and time.monotonic() < deadline:
                time.sleep(0.1)
        shutil.rmtree(self.temporary, ignore_errors=True)


def start(part: Part, cpus: list[int], gpus: list[str], folder: Path, clones: str) -> Running:
    """Starts its commands on `cpus`, seeing `gpus` alone, with a temporary folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f"campaign-{part.name}-")
    env = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PART": str(folder),
        "CLONES": clones,
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "TMPDIR": temporary,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    one_by_one = ("failed=0", *(f"({command}) || failed=1" for command in part.commands))
    scripts = part.commands if part.at_once else ("\n".join((*one_by_one, "exit $failed")),)
    each = len(cpus) // len(scripts)
    groups = []
    with (folder / "out.txt").open("ab") as out:
        for i, script in enumerate(scripts):
            own = ",".join(map(str, cpus[i * each : (i + 1) * each]))
            command = ["taskset", "-c", own, "bash", "-c", script]
            groups.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True
                )
            )
    now = time.monotonic()
    return Running(part, cpus, gpus, groups, temporary, now, now + 1.5 * part.seconds)


def campaign(
    parts: list[Part], cpus: list[int], gpus: list[str], folder: Path, seconds: float, clones: str
) -> Iterator[tuple[Part, str]]:
    """Runs what there is room and time for, and says of each part how it ended, as it ends."""
    end = time.monotonic() + seconds
    waiting, running = list(parts), list[Running]()
    for part in parts:
        if part.cpus > len(cpus) or part.gpus > len(gpus):
            waiting.remove(part)
            yield part, f"no room: it needs {part.cpus} CPUs and {part.gpus} GPUs"
        elif part.needs_clones and not clones:
            waiting.remove(part)
            yield part, "needs --clones"
    cpus, gpus = list(cpus), list(gpus)
    while running or waiting:
        kept = 0  # CPUs, for the first part that waits for a GPU
        for part in list(waiting):
            if end - time.monotonic() < LEAST_SHARE * part.seconds:
                waiting.remove(part)
                yield part, "no time"
            elif part.gpus > len(gpus):
                kept = kept or part.cpus
            elif part.cpus <= len(cpus) - (0 if part.gpus else kept):
                waiting.remove(part)
                own, cpus = cpus[: part.cpus], cpus[part.cpus :]
                own_gpus, gpus = gpus[: part.gpus], gpus[part.gpus :]
                running.append(start(part, own, own_gpus, folder / part.name, clones))
        for one in list(running):
            code, now = one.exit_code(), time.monotonic()
            if code is None and now < min(end, one.until):
                continue
            one.end()
            running.remove(one)
            cpus, gpus = sorted(cpus + one.cpus), sorted(gpus + one.gpus)
            how = "stopped" if code is None else "done" if code == 0 else f"exit code {code}"
            yield one.part, f"{how} after {now - one.began:.0f} s"
        time.sleep(0.2)


def _gpus() -> list[str]:
    """Those that may be seen, as CUDA_VISIBLE_DEVICES names them."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    asked = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return [str(i) for i, line in enumerate(asked.stdout.splitlines()) if line.startswith("GPU")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="for what was measured")
    parser.add_argument("--seconds", type=float, default=560.0, help="that all of it may take")
    parser.add_argument("--only", help="parts, separated by commas, in this order")
    parser.add_argument("--not", dest="without", default="", help="parts, separated by commas")
    parser.add_argument("--clones", type=Path, help="of public projects: see public_scripts.py")
    parser.add_argument("--list", action="store_true", help="the parts and what they take")
    args = parser.parse_args()
    by_name = {part.name: part for part in PARTS}
    names = args.only.split(",") if args.only else list(by_name)
    without = args.without.split(",") if args.without else []
    if unknown := sorted({*names, *without} - set(by_name)):
        parser.error(f"no part named {', '.join(unknown)}: they are {', '.join(by_name)}")
    parts = [by_name[name] for name in names if name not in without]
    if args.list:
        for part in parts:
            print(f"{part.name:20} {part.seconds:4} s {part.cpus:3} CPUs {part.gpus} GPUs")
            print(*(f"    {command}" for command in part.commands), sep="\n")
        return 0
    if args.folder is None:
        parser.error("a folder for what is measured is missing")
    folder = args.folder.resolve()
    cpus, gpus = sorted(os.sched_getaffinity(0)), _gpus()
    revision = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    print(f"revision {revision or 'unknown'}, {len(cpus)} CPUs, {len(gpus)} GPUs", flush=True)
    clones = str(args.clones.resolve()) if args.clones else ""
    ended = dict[str, str]()
    for part, how in campaign(parts, cpus, gpus, folder, args.seconds, clones):
        print(f"{part.name:20} {how}", flush=True)
        ended[part.name] = how
    left = [name for name, how in ended.items() if how.split()[0] in ("no", "needs", "stopped")]
    if left:
        print(f"left: --only {','.join(left)}")
    return int(any(how.startswith("exit") for how in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
