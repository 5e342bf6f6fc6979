"""Fuzzes what loaderdoctor reads: traces, report.json, worker records, samples, run folders.

    python benchmarks/fuzz.py --seconds 600                    mutated real traces, at random
    python benchmarks/fuzz.py --engine atheris --seconds 600   guided by coverage (needs atheris)

Inputs are real traces cut to 5 to 50 KB and mutated with an idea of their structure (tests/fuzz),
and files of the other kinds that are read (`tests/fuzz/targets.py` lists them and their shares). A
result is a failure unless it is a one-line refusal or a report whose shares add up: any other
exception or exit code, more than `--limit` seconds, more memory than `analyze` was allowed.

Inputs are judged within one process that starts none: 5 ms of CPU each, and not 400. That process
is watched by this one, which ends it where it hangs, keeps what took it down, and starts it anew
every `--recycle` inputs. Each new kind of failure is saved below `--save`; the last line of each
run (inputs, inputs/s) is appended there to `log.jsonl`. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from tests.fuzz.worker import Fuzzer, Tally

SHM = Path("/dev/shm")
# Of what libFuzzer is shown at first; the rest of the seeds are too large to be mutated by it.
GUIDED_SEED_BYTES = 9_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", choices=("random", "atheris"), default="random")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inputs", type=int, help="stop after so many")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFFFF)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds an input may take")
    parser.add_argument("--recycle", type=int, default=20_000, help="inputs a process is given")
    parser.add_argument("--save", type=Path, default=Path("fuzz-found"))
    options = parser.parse_args()
    options.save.mkdir(parents=True, exist_ok=True)
    if options.engine == "atheris":
        import atheris

        instrumented = atheris.instrument_imports(include=["loaderdoctor"])
    else:
        instrumented = nullcontext()
    with instrumented:
        from tests.fuzz.worker import Fuzzer, Tally

        fuzzer = Fuzzer(
            options.seed,
            limit_s=options.limit,
            save=options.save,
            shm=SHM if SHM.is_dir() else None,
        )
    total = Tally()
    began = time.monotonic()
    try:
        n_workers = 0
        while (left_s := options.seconds - (time.monotonic() - began)) > 0:
            n_done = sum(total.inputs.values())
            if options.inputs is not None and n_done >= options.inputs:
                break
            n_workers += 1
            fuzzer.rng.seed(options.seed * 1_000_003 + n_workers)
            n_inputs = options.recycle
            if options.inputs is not None:
                n_inputs = min(n_inputs, options.inputs - n_done)
            total.add(_supervised(fuzzer, options, n_inputs, left_s))
    except KeyboardInterrupt:
        pass
    finally:
        _finish(total, options, time.monotonic() - began)
        shutil.rmtree(fuzzer.work, ignore_errors=True)


def _finish(total: Tally, options: argparse.Namespace, took_s: float) -> None:
    n_inputs = sum(total.inputs.values())
    row = {
        "engine": options.engine,
        "seed": options.seed,
        "n_inputs": n_inputs,
        "per_s": round(n_inputs / took_s, 1),
        "seconds": round(took_s),
        "cpu_s": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime),
        "inputs": dict(total.inputs),
        "outcomes": dict(total.outcomes),
        "failures": dict(total.failures),
        "slowest_s": round(total.slowest_s, 2),
        "peak_bytes": total.peak_bytes,
    }
    print(json.dumps(row), flush=True)
    with (options.save / "log.jsonl").open("a") as log:
        log.write(json.dumps(row) + "\n")


# ---------------------------------------------------------------- one process, watched


def _supervised(
    fuzzer: Fuzzer, options: argparse.Namespace, n_inputs: int, seconds: float
) -> Tally:
    """Fork a process for so many inputs; what it did, with what took it down where it ended."""
    from tests.fuzz.worker import Tally, keep

    first = fuzzer.slot.number
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        _work(fuzzer, options, n_inputs, seconds, send)
    os.close(send)
    try:
        with os.fdopen(receive, "rb") as pipe:
            hung = _watch(fuzzer, pid, options.limit, pipe)
            sent = pipe.read()
            _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    if sent and status == 0:
        return fuzzer.take(sent)
    kind, data = fuzzer.slot.get()
    name = keep(fuzzer.save, kind, data)
    how = "hung" if hung else f"took the process down (status {status})"
    print(f"{kind} {how}: [{name}, {len(data)} bytes]", flush=True)
    tally = Tally()  # which inputs they were is lost with it, but not their number
    tally.inputs["in a process that ended"] = fuzzer.slot.number - first
    tally.failures[f"{kind} {how}"] += 1
    return tally


def _watch(fuzzer: Fuzzer, pid: int, limit_s: float, pipe: IO[bytes]) -> bool:
    """Until the process has its result or ends; whether it hung, and was ended, with one input."""
    number, since = fuzzer.slot.number, time.monotonic()
    while not select.select([pipe], [], [], 1.0)[0]:
        if fuzzer.slot.number != number:
            number, since = fuzzer.slot.number, time.monotonic()
        elif time.monotonic() - since > 2 * limit_s + 10:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _work(
    fuzzer: Fuzzer, options: argparse.Namespace, n_inputs: int, seconds: float, send: int
) -> None:
    """In the process that fuzzes; it ends here."""
    status = 1
    try:
        fuzzer.begin()
        until = time.monotonic() + seconds
        last = fuzzer.slot.number + n_inputs

        def over() -> bool:
            return fuzzer.slot.number >= last or time.monotonic() > until

        def end() -> None:
            with os.fdopen(send, "wb") as pipe:
                pipe.write(fuzzer.result())
            sys.stdout.flush()
            os._exit(0)

        if options.engine == "atheris":
            _guided(fuzzer, options, over, end)
        while not over():
            fuzzer.one()
        end()
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _guided(
    fuzzer: Fuzzer, options: argparse.Namespace, over: Callable[[], bool], end: Callable[[], None]
) -> None:
    """LibFuzzer keeps what reaches new code, and mutates it by our mutator and its own.

    What it kept stays in a folder, where the next process takes it up.
    """
    import atheris

    from tests.fuzz.worker import keep

    corpus = options.save / "guided-corpus"
    if not corpus.exists():
        corpus.mkdir()
        for seed in fuzzer.mutator.seeds:
            if len(seed) <= GUIDED_SEED_BYTES:
                keep(corpus, "trace", seed)
    n_tried = 0

    def one(data: bytes) -> None:
        nonlocal n_tried
        if over():
            end()  # libFuzzer has no other way out of its loop
        n_tried += 1
        if n_tried % 8 == 0:  # the other kinds, in their shares, are not guided
            fuzzer.one()
        else:
            fuzzer.judge("trace", data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        fuzzer.rng.seed(seed)
        if fuzzer.rng.random() < 0.1:
            return bytes(atheris.Mutate(data, max_size))
        return fuzzer.mutator.mutate(bytes(data))[:max_size]

    # Its own alarms are off: ours tell what was slow.
    flags = [
        "-timeout=0",
        "-max_len=200000",
        "-rss_limit_mb=0",
        f"-artifact_prefix={options.save}/",
        "-verbosity=0",
        f"-seed={fuzzer.rng.randrange(1, 1 << 31)}",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
