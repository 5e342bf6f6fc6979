"""Everything that is fuzzed, by kind: how an input is made out of sound ones, and how it is judged.

`judge` is what the fuzzer and the kept corpus share; it raises whatever the program should not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loaderdoctor.commands.job_traces import MIN_POOL_BYTES
from loaderdoctor.report.model import Report
from tests.fuzz import binary, command, made, other, seeds, sound, subject
from tests.fuzz.mutate import Mutator
from tests.fuzz.words import HOSTILE

# What `analyze` makes of a trace, up to the text and the JSON; the whole command, of a trace and
# of a job's folder; the command with everything it can write; of a trace within a run of ours,
# whose report it reads too; the rest by what is read.
Kind = Literal[
    "trace",
    "command",
    "job",
    "written",
    "run",
    "report",
    "compare",
    "records",
    "samples",
    "idx",
    "view",
]
# Of ten thousand inputs. What takes long (drawing, writing, several traces) is a sample.
SHARES: dict[Kind, int] = {
    "trace": 8715,
    "command": 150,
    "job": 50,
    "written": 5,
    "run": 30,
    "report": 350,
    "compare": 100,
    "records": 250,
    "samples": 200,
    "idx": 120,
    "view": 60,
}
TRACES: tuple[Kind, ...] = ("trace", "command", "job", "written")
# Seeds of each size, and how often one of them is taken.
LEAN = ((5_000, 10), (8_000, 5))
WHOLE = ((15_000, 0.7), (50_000, 0.05))


@dataclass(slots=True)
class Hints:
    """What spares the judge of a trace work; by default it does all of it."""

    draw: Callable[[Report], bool] = lambda report: True
    known: Callable[[int], bool] = lambda key: False


def judge(kind: str, data: bytes, place: Path, hints: Hints | None = None) -> str:
    """The outcome: refused, reported, known. Raises AssertionError, or what escaped the program."""
    hints = hints or Hints()
    folder = place / kind
    folder.mkdir(exist_ok=True)
    path = folder / "run.json"
    match kind:
        case "trace":
            path.write_bytes(data)
            found = subject.analyzed(path, draw=hints.draw, known=hints.known)
            return "refused" if isinstance(found, str) else "known" if found is None else "reported"
        case "command" | "written":
            path.write_bytes(data)
            output = folder / "runs" if kind == "written" else None
            done = command.analyzed([path], output=output, as_json=len(data) % 2 == 1)
        case "run":
            run = folder / "run"
            (run / "perfetto").mkdir(parents=True, exist_ok=True)
            path = run / "perfetto" / "baseline.json"
            path.write_bytes(made.made()["cpu"])
            (run / "report.json").write_bytes(data)
            done = command.analyzed([path], as_json=len(data) % 2 == 1)
        case "job":
            shutil.rmtree(folder)
            folder.mkdir()
            # Larger folders are read by processes, which take a second to start.
            for n, part in enumerate(data[: MIN_POOL_BYTES - 1].split(other.SEPARATOR)):
                (folder / f"trace_rank{n}.json").write_bytes(part)
            done = command.analyzed([folder], as_json=len(data) % 2 == 1)
        case "report" | "compare":
            (folder / "sound").mkdir(exist_ok=True)
            path = folder / "report.json"
            path.write_bytes(data)
            before = folder / "sound" / "report.json"
            if not before.exists():
                sound.report(before.parent)
            if kind == "compare":
                done = command.compared(before, path)
            else:
                done = other.compared(path, before) is None
        case "records":
            shutil.rmtree(folder)
            folder.mkdir()
            for n, part in enumerate(data.split(other.SEPARATOR)):
                (folder / f"worker-7-{n + 1}.rec").write_bytes(part)
            done = other.records(folder) is None
        case "samples":
            (folder / "samples.npz").write_bytes(data)
            done = other.resumed(folder) is None
        case "idx":
            path.write_bytes(data)
            done = other.idx(path) is None
        case _:
            shutil.rmtree(folder)
            done = other.viewed(folder, data) is None
    return "reported" if done else "refused"


@dataclass(slots=True)
class Maker:
    """Makes inputs of every kind out of sound ones."""

    mutator: Mutator
    sound: dict[str, bytes]  # files of the other kinds, by kind
    traces: list[bytes] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def make(self, kind: Kind) -> bytes:
        """An input of that kind."""
        m, rng = self.mutator, self.mutator.rng
        match kind:
            case "trace" | "command" | "written":
                return m.mutate(self.trace())
            case "job":
                parts = [m.mutate(self.trace())]
                for _ in range(rng.choice((1, 1, 2))):
                    part = self.trace()
                    parts.append(m.mutate(part) if rng.random() < 0.5 else part)
                rng.shuffle(parts)
                return other.SEPARATOR.join(parts)
            case "report" | "compare" | "run":
                return binary.mutate_json(self.sound["report"], m)
            case "records":
                parts = [self.sound["records"]] * rng.choice((0, 1, 2))
                at = rng.randrange(len(parts) + 1)
                parts.insert(at, binary.mutate_records(self.sound["records"], m))
                return other.SEPARATOR.join(parts)
            case "samples":
                return binary.mutate_samples(self.sound["samples"], m)
            case "idx":
                return binary.mutate_idx(self.sound["idx"], m)
            case "view":
                return _folder(m)

    def trace(self) -> bytes:
        """One of the seeds."""
        return self.mutator.rng.choices(self.traces, self.weights)[0]


def maker(mutator: Mutator, work: Path, traces: list[bytes] | None = None) -> Maker:
    """With all seeds (or these traces); other files the program itself writes below `work`."""
    files = {
        "report": sound.report,
        "records": sound.records,
        "samples": sound.samples,
        "idx": sound.idx,
    }
    found = {}
    for kind, write in files.items():
        folder = work / "sound" / kind
        folder.mkdir(parents=True)
        found[kind] = write(folder).read_bytes()
    if traces is not None:
        return Maker(mutator, found, traces, [1.0] * len(traces))
    made_of = Maker(mutator, found)
    for sizes, lean in ((LEAN, True), (WHOLE, False)):
        for n_bytes, weight in sizes:
            cuts = list(seeds.seeds(n_bytes, lean=lean).values())
            made_of.traces += cuts
            made_of.weights += [weight] * len(cuts)
    others = list(made.made().values())
    made_of.traces += others
    made_of.weights += [5.0] * len(others)
    mutator.seeds = tuple(made_of.traces)
    return made_of


_NAMES = (
    "tensorboard/baseline/w.17.pt.trace.json.gz",
    "tensorboard/events.out.tfevents.1",
    "tensorboard",
    "perfetto/baseline.json.gz",
    "perfetto/trial-01.json.gz",
    "perfetto",
    "report.json",
    "a/b/w.1.pt.trace.json.gz",
)


def _folder(m: Mutator) -> bytes:
    """A run folder as a list of entries: some as they should be, some of other kinds and names."""
    rng = m.rng
    entries = []
    for _ in range(rng.choice((0, 1, 3, 6))):
        name = rng.choice(_NAMES)
        if rng.random() < 0.3:
            name = rng.choice((name + rng.choice(HOSTILE), f"{rng.choice(HOSTILE)}/{name}"))
        kind = rng.choice(("file", "file", "file", "folder", "link"))
        target = rng.choice((".", "..", "report.json", "nowhere", name, "tensorboard"))
        entries.append([kind, name, target])
    return json.dumps(entries).encode()
