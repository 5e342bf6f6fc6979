"""Fuzzes what loaderdoctor reads: traces (`analyze`), report.json, worker records, sweep samples.

    python benchmarks/fuzz.py --seconds 600                    mutated real traces, at random
    python benchmarks/fuzz.py --engine atheris --seconds 600   guided by coverage (needs atheris)

Inputs are real traces cut to 6 to 50 KB and mutated with an idea of their structure (tests/fuzz).
A result is a failure unless it is a one-line refusal or a report whose shares add up: any other
exception, or more than `--limit` seconds, within 6 GB of address space. Each new kind of failure is
saved below `--save`; the last line of each run (inputs, inputs/s) is appended there to `log.jsonl`.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

# Of each hundred inputs; the console is drawn for one report in so many (it takes longer than all
# the rest), and for each new set of findings.
SHARES = {"trace": 88, "report": 6, "records": 4, "samples": 2}
CONSOLE_EVERY = 8
MEMORY_BYTES = 6 << 30
SHM = Path("/dev/shm")


class SlowError(BaseException):
    """An input took longer than the limit; no `except Exception` on the way may swallow it."""


class Fuzzer:
    """Judges inputs, counts them, and keeps what fails."""

    def __init__(self, options: argparse.Namespace) -> None:
        from tests.fuzz import seeds, subject
        from tests.fuzz.mutate import Mutator

        self.subject = subject
        self.limit_s = options.limit
        self.save: Path = options.save
        self.save.mkdir(parents=True, exist_ok=True)
        self.work = Path(tempfile.mkdtemp(prefix="fuzz-", dir=SHM if SHM.is_dir() else None))
        self.rng = random.Random(options.seed)
        self.seeds = [
            *seeds.seeds(6_000).values(),
            *seeds.seeds(15_000).values(),
            *seeds.seeds(50_000).values(),
        ]
        self.weights = [10] * 12 + [4] * 12 + [1] * 12
        self.mutator = Mutator(self.rng, self.seeds)
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.shown: set[tuple[str, ...]] = set()
        self.others = _others(self.work)

    # -- one input ---------------------------------------------------------------------------

    def trace(self, data: bytes) -> None:
        path = self.work / "run.json"
        path.write_bytes(data)

        def judge() -> str:
            found = self.subject.analyzed(path, draw=self._draws)
            return "refused" if isinstance(found, str) else "reported"

        self._judge("trace", data, judge)

    def other(self, kind: str, data: bytes) -> None:
        """A report.json, worker records or samples."""
        seed = self.others[kind]
        path = self.work / kind / seed.name
        path.write_bytes(data)
        run: dict[str, Callable[[], str | None]] = {
            "report": lambda: self.subject.compared(path, self.work / "sound" / "report.json"),
            "records": lambda: self.subject.records(path.parent),
            "samples": lambda: self.subject.resumed(path.parent),
        }
        self._judge(kind, data, lambda: "refused" if run[kind]() else "read")

    def one(self) -> None:
        """An input made at random."""
        from tests.fuzz import binary

        kind = self.rng.choices(list(SHARES), list(SHARES.values()))[0]
        if kind == "trace":
            data = self.rng.choices(self.seeds, self.weights)[0]
            self.trace(self.mutator.mutate(data))
            return
        seed = self.others[kind].read_bytes()
        mutate = {
            "report": binary.mutate_json,
            "records": binary.mutate_records,
            "samples": binary.mutate_samples,
        }
        self.other(kind, mutate[kind](seed, self.mutator))

    def _draws(self, report: object) -> bool:
        kinds = tuple(sorted({f.kind for f in report.findings}))  # type: ignore[attr-defined]
        new = kinds not in self.shown
        self.shown.add(kinds)
        return new or self.counts["reported"] % CONSOLE_EVERY == 0

    def _judge(self, kind: str, data: bytes, judge: Callable[[], str]) -> None:
        began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self.limit_s)
        try:
            outcome = judge()
        except (Exception, SlowError) as error:
            outcome = "failed"
            self._keep(kind, data, error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.counts[kind] += 1
        self.counts[outcome] += 1
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)

    def _keep(self, kind: str, data: bytes, error: BaseException) -> None:
        ours = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if "/loaderdoctor/" in f.filename or "/fuzz/" in f.filename
        ]
        where = f"{Path(ours[-1].filename).stem}:{ours[-1].lineno}" if ours else "?"
        key = f"{kind} {type(error).__name__} {where}"
        self.failures[key] += 1
        if self.failures[key] <= 3:
            digest = hashlib.sha256(data).hexdigest()[:10]
            (self.save / f"{kind}-{digest}").write_bytes(data)
            print(
                f"{key}: {ascii(str(error))[:300]} [{kind}-{digest}, {len(data)} bytes]", flush=True
            )
            if self.failures[key] == 1:
                traceback.print_exception(error, limit=-5)

    def n_inputs(self) -> int:
        return sum(self.counts[kind] for kind in SHARES)


def _others(work: Path) -> dict[str, Path]:
    """Sound files of the other kinds, written by the program itself."""
    from tests.fuzz import sound

    found = {}
    for kind, make in (
        ("report", sound.report),
        ("records", sound.records),
        ("samples", sound.samples),
    ):
        folder = work / "sound" / kind
        folder.mkdir(parents=True)
        found[kind] = make(folder)
        (work / kind).mkdir()
    shutil.copy(found["report"], work / "sound" / "report.json")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", choices=("random", "atheris"), default="random")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFFFF)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds an input may take")
    parser.add_argument("--save", type=Path, default=Path("fuzz-found"))
    options = parser.parse_args()
    resource.setrlimit(
        resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1])
    )
    if options.engine == "atheris":
        import atheris

        instrumented = atheris.instrument_imports(include=["loaderdoctor"])
    else:
        instrumented = nullcontext()
    with instrumented:
        fuzzer = Fuzzer(options)

    def too_slow(signum: int, frame: FrameType | None) -> None:
        raise SlowError(f"over {options.limit} s")

    signal.signal(signal.SIGALRM, too_slow)
    gc.freeze()
    began = time.monotonic()
    try:
        if options.engine == "atheris":
            _guided(fuzzer, options)
        else:
            while time.monotonic() - began < options.seconds:
                fuzzer.one()
    except KeyboardInterrupt:
        pass
    _finish(fuzzer, options, time.monotonic() - began)


def _finish(fuzzer: Fuzzer, options: argparse.Namespace, took_s: float) -> None:
    row = {
        "engine": options.engine,
        "seed": options.seed,
        "n_inputs": fuzzer.n_inputs(),
        "per_s": round(fuzzer.n_inputs() / took_s, 1),
        "seconds": round(took_s),
        "counts": dict(fuzzer.counts),
        "failures": dict(fuzzer.failures),
        "slowest_s": round(fuzzer.slowest_s, 2),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(row))
    with (options.save / "log.jsonl").open("a") as log:
        log.write(json.dumps(row) + "\n")
    shutil.rmtree(fuzzer.work, ignore_errors=True)


def _guided(fuzzer: Fuzzer, options: argparse.Namespace) -> None:
    """LibFuzzer keeps what reaches new code, and mutates it by our mutator and its own."""
    import atheris

    corpus = options.save / "guided-corpus"
    corpus.mkdir(exist_ok=True)
    for seed in fuzzer.seeds[:24]:
        (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    until = time.monotonic() + options.seconds
    began = time.monotonic()

    def one(data: bytes) -> None:
        if time.monotonic() > until:
            _finish(fuzzer, options, time.monotonic() - began)
            sys.stdout.flush()
            os._exit(0)  # libFuzzer has no other way out of its loop
        fuzzer.trace(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        fuzzer.rng.seed(seed)
        if fuzzer.rng.random() < 0.1:
            return bytes(atheris.Mutate(data, max_size))
        return fuzzer.mutator.mutate(bytes(data))[:max_size]

    # Its own alarm is off: ours tells what was slow.
    flags = [
        "-timeout=0",
        "-max_len=200000",
        "-rss_limit_mb=0",
        f"-artifact_prefix={options.save}/",
        "-verbosity=0",
        f"-seed={options.seed}",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
