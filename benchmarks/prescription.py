"""What `diagnose` promises is written by `apply` and tested by `prove`: which promises are kept.

    python benchmarks/prescription.py [NAME…] [--user] [--public FOLDER] [--budget 20] [--turns 3]
                                      [--max-turns 12] [--seconds 8] [--at-once 1]
                                      [--runs FOLDER] [--json FILE]

For each script of `prescribed/` (with --user: of `user_scripts/`, with --public: of clones of
pytorch/examples, pytorch/vision and huggingface/pytorch-image-models in FOLDER): `loaderdoctor
diagnose` in a copy of the script's folder, `apply --write` there, `prove` (original and changed
script in turns, in fresh processes, on the same seed). A row holds where the promise's interval
meets the measured one, or comes within 15 % of the measured ratio, and a promised gain is not ruled
out (an "at best": where the script became faster, and not by more than that; "may gain less or
nothing": where it did not become slower), and where the changed script trains on the same batches
to the same losses, but for other random draws and for what the advice said of them. Where the speed
was as promised and of training nothing can be known (a script that differs from itself), the row
says both and is not counted as one that holds; nor is one where a gain was promised and the proof
is too noisy to show any. The first change that can be written is proven; those before it are
counted as "by hand".

--at-once runs that many scripts side by side, each on CPUs (and, in turn, GPUs) of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

HERE = Path(__file__).resolve().parent
RECIPES = HERE.parent / "recipes"
SIX = (
    "jpeg_resnet",
    "mnist_through_pil",
    "tiny_tensors",
    "many_small_copies",
    "pageable_big_copy",
    "tokenising_collate",
)
OTHERS = ("lightning_fit", "gpu_prefetcher", "item_every_step", "images_as_floats")
# Ten scripts as people write them: argparse, classes, kwargs, streams, a package run with -m, tabs.
USER = {
    "finetune": ("finetune.py", "data/photos", "-j", "0", "--batch-size=16"),
    "houses": ("houses.py",),
    "sentiment": ("sentiment.py",),
    "tones": ("tones.py",),
    "thumbnails": ("thumbnails.py",),
    "xor_table": ("xor_table.py",),
    "stream": ("stream.py",),
    "speech": ("-m", "speech.train"),
    "autoencoder": ("autoencoder.py",),
    "segments": ("segments.py", "--width", "256"),
}
N_IMAGES = 1600
# Of the public scripts: epochs long enough that a proof times none of their validation.
N_TRAIN = 4800
MAX_LISTED = 6  # changes that are tried to be written, in the report's order
STEP_LIMIT_S = 800.0  # for one command of ours
RUNNING: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A script in a folder of its own, and how it is started there."""

    name: str
    folder: Path  # copied
    words: tuple[str, ...]  # after `loaderdoctor diagnose`: script and arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one of the scripts that run side by side may use."""

    cpus: tuple[int, ...]
    gpu: str | None  # as CUDA_VISIBLE_DEVICES names it


class StepError(Exception):
    """A command of ours failed; the message is its last words."""


def prescribed(name: str) -> Case:
    """A script of `prescribed/` with the data that it is told of."""
    data: dict[str, Path] = {"mnist_through_pil": RECIPES / "mnist" / "data"}
    if name == "jpeg_resnet":
        sys.path.insert(0, str(RECIPES / "imagefolder"))
        from cutouts import default_folder, make_cutouts

        data[name] = make_cutouts(default_folder(), N_IMAGES)
    words = (f"{name}.py", *([str(data[name])] if name in data else []))
    return Case(name=name, folder=HERE / "prescribed", words=words)


def user_scripts(names: Sequence[str], temporary: Path) -> list[Case]:
    """Those of `user_scripts/`, beside the data that they read."""
    folder = temporary / "user_scripts"
    shutil.copytree(HERE / "user_scripts", folder, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    return [Case(name=name, folder=folder, words=USER[name]) for name in names or USER]


def public_scripts(names: Sequence[str], clones: Path, temporary: Path) -> list[Case]:
    """Training scripts of three repositories over JPEG files, each started with too few workers."""
    images = temporary / "images"
    sys.path.insert(0, str(RECIPES / "imagefolder"))
    from cutouts import default_folder, make_cutouts

    for part, n in (("train", N_TRAIN), ("val", 100)):
        images.mkdir(exist_ok=True)
        (images / part).symlink_to(make_cutouts(default_folder(), n))
    data = str(images)
    device = "cuda" if _gpus() else "cpu"
    every = {
        "imagenet": ("examples/imagenet", "main.py", "-a", "resnet18", "-j", "1", "-b", "32", data),
        "timm": (
            "pytorch-image-models", "train.py", data, "--model", "resnet18", "-j", "1", "-b", "32",
            "--device", device, "--num-classes", "10",
        ),
        "torchvision": (
            "vision/references/classification", "train.py", "--data-path", data, "--model",
            "resnet18", "-j", "1", "-b", "32", "--device", device,
        ),
    }  # fmt: skip
    return [
        Case(name=name, folder=clones / words[0], words=tuple(words[1:]))
        for name, words in every.items()
        if name in (names or every)
    ]


def shares(n: int) -> list[Share]:
    """The machine in `n` equal parts."""
    cpus, gpus = sorted(os.sched_getaffinity(0)), _gpus()
    each = max(1, len(cpus) // n)
    return [
        Share(
            cpus=tuple(cpus[i * each : (i + 1) * each]) or tuple(cpus),
            gpu=gpus[i % len(gpus)] if gpus else None,
        )
        for i in range(n)
    ]


def row_of(case: Case, args: argparse.Namespace, share: Share) -> dict[str, Any]:
    """One script from diagnosis to proof; what was not got is said in `miss`."""
    with tempfile.TemporaryDirectory(prefix="prescription-") as temporary:
        kept = args.runs.resolve() / case.name if args.runs else Path(temporary, "kept")
        kept.mkdir(parents=True, exist_ok=True)
        tree = Path(temporary, case.folder.name)
        shutil.copytree(case.folder, tree)
        started = time.perf_counter()
        row: dict[str, Any] = {"script": case.name}
        try:
            row |= _through(case, args, share, tree, kept)
        except StepError as error:
            row["miss"] = str(error)
        return row | {"took_s": round(time.perf_counter() - started)}


def _through(
    case: Case, args: argparse.Namespace, share: Share, tree: Path, kept: Path
) -> dict[str, Any]:
    run = kept / "run"
    budget = ["--budget", f"{args.budget:g}", "--output", str(run)]
    _ours(["diagnose", *budget, *case.words], share, tree, kept / "diagnose.txt")
    report = json.loads((run / "report.json").read_text())
    row: dict[str, Any] = {
        "verdict": f"{report['verdict']['bound']} {report['verdict']['severity']}",
        "step_ms": report["step"]["wall_ms"],
    }
    if not report["recommendations"]:
        return row | {"advice": "none"}
    row["by_hand"] = []
    for number in range(1, MAX_LISTED):
        try:
            words = ["apply", "--write", str(run), str(number)]
            row["diff"] = _ours(words, share, tree, kept / "apply.txt")
            break
        except StepError as error:
            if "There is no change" in str(error) or "no change that can be" in str(error):
                return row | {"advice": "none can be written"}
            row["by_hand"].append(str(error))
    try:
        how = ["--turns", str(args.turns), "--max-turns", str(args.max_turns)]
        how += ["--seconds", f"{args.seconds:g}"]
        words = ["prove", *how, str(run), str(number)]
        _ours(words, share, tree, kept / "prove.txt", fails=(0, 3))
    except StepError as error:
        return row | {"advice": f"change {number}", "miss": str(error)}
    proof = json.loads((run / "proofs.json").read_text())[-1]
    before = f"{len(row['by_hand'])} by hand; " if row["by_hand"] else ""
    return row | {"advice": f"{before}{proof['changes']}", "proof": proof}


def _ours(
    words: Sequence[str], share: Share, cwd: Path, output: Path, *, fails: tuple[int, ...] = (0,)
) -> str:
    """One command on its share of the machine; its stdout. Raises StepError."""
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, PYTHONPATH=path)
    if share.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = share.gpu
    process = subprocess.Popen(
        [sys.executable, "-m", "loaderdoctor", *words],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, share.cpus),
    )
    RUNNING.add(process)
    try:
        out, error = process.communicate(timeout=STEP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends what it started
        process.communicate()
        raise StepError(f"{words[0]}: not done after {STEP_LIMIT_S:g} s") from None
    finally:
        RUNNING.discard(process)
    output.write_text(f"{out}\n{error}")
    if process.returncode not in fails:
        said = [line for line in error.splitlines() if line.strip()]
        raise StepError(f"{words[0]}: {' '.join(said[-2:])[-300:]}")
    return out


def held(row: dict[str, Any]) -> bool | None:
    """Whether all was as promised; None: nothing was, or the proof leaves a part open."""
    if "miss" in row:
        return False
    if "proof" not in row:
        return False if row.get("by_hand") else None  # changes that could not be written
    proof = row["proof"]
    as_expected: bool | None = proof["as_expected"]
    if not proof["promise_kept"] or as_expected is False:
        return False
    return None if _shows_no_gain(proof) else as_expected


def _shows_no_gain(proof: dict[str, Any]) -> bool:
    """Whether a gain was promised and the proof is too noisy to show one, or to rule that out."""
    return bool(proof.get("promised_gain")) and (proof["speed_up"]["low"] or 0.0) <= 1.0


def _held_words(row: dict[str, Any]) -> str:
    whether = held(row)
    if whether is None and _shows_no_gain(row["proof"]):
        return "open: no gain shown, none ruled out"
    return {True: "yes", False: "**no**", None: "speed yes, training not known"}[whether]


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """As Markdown."""
    print("| script | verdict | change | step, ms | promised | got | training | held |")
    print("|---|---|---|---:|---:|---:|---|---|")
    for row in rows:
        cells = [row["script"], row.get("verdict", "–"), row.get("advice", "–")]
        proof = row.get("proof")
        if proof is None:
            cells += [f"{row['step_ms']:.3g}" if row.get("step_ms") else "–", "–", "–"]
            cells += [row.get("miss", "–"), "**no**" if "miss" in row else "–"]
        else:
            ratio = proof["speed_up"]
            cells.append(f"{proof['before_ms']['value']:.3g} → {proof['after_ms']['value']:.3g}")
            cells.append(_promised(proof))
            between = f" [{ratio['low']:.2f}, {ratio['high'] or float('inf'):.2f}]"
            cells.append(f"{ratio['value']:.2f}×{between}")
            cells += [proof["training"], _held_words(row)]
        print("| " + " | ".join(cells) + " |")
    promised_rows = [row for row in rows if held(row) is not None or "proof" in row]
    n_open = sum(held(row) is None for row in promised_rows)
    n_noisy = sum(held(row) is None and _shows_no_gain(row["proof"]) for row in promised_rows)
    left = f"; of {n_noisy} the proof decides nothing" if n_noisy else ""
    n_alone = n_open - n_noisy
    left += f"; of {n_alone} the speed alone, training is not known" if n_alone else ""
    n_equal = sum(row.get("proof", {}).get("promised_gain") is False for row in promised_rows)
    left += f"; {n_equal} promised no gain" if n_equal else ""
    n_held = sum(held(row) is True for row in promised_rows)
    print(f"\n{n_held} of {len(promised_rows)} held{left}.")


def _promised(proof: dict[str, Any]) -> str:
    times, between = proof["promised_speed_up"], proof.get("promised_between")
    if times is None:
        return "–"
    at_best = "at best " if proof.get("promise_at_best") else ""
    may = ", may gain less or nothing" if proof.get("promised_gain") is False else ""
    interval = f" [{between[0]:.2f}, {between[1]:.2f}]" if between else ""
    return f"{at_best}{times:.2f}×{interval}{may}"


def main() -> None:
    """Run what was asked for, side by side where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--user", action="store_true", help="the ten of user_scripts/")
    parser.add_argument("--public", type=Path, metavar="FOLDER", help="of three clones in it")
    parser.add_argument("--budget", type=float, default=20.0, help="of each diagnosis, seconds")
    parser.add_argument("--turns", type=int, default=3, help="of each proof, at least")
    parser.add_argument("--max-turns", type=int, default=12, help="while nothing is decided")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run of a proof")
    parser.add_argument("--at-once", type=int, default=1, metavar="N")
    parser.add_argument("--runs", type=Path, help="keep the run folders here")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prescription-data-") as temporary:
        if args.user:
            cases = user_scripts(args.names, Path(temporary))
        elif args.public is not None:
            cases = public_scripts(args.names, args.public.resolve(), Path(temporary))
        else:
            cases = [prescribed(name) for name in args.names or SIX]
        rows = run_all(cases, args)
    print_table(rows)
    print(f"\n{machine()}")


def run_all(cases: Sequence[Case], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each case, in their order; --json is written after each."""
    free: Queue[Share] = Queue()
    for share in shares(args.at_once):
        free.put(share)
    rows: dict[str, dict[str, Any]] = {}

    def cut_short(*_: object) -> None:
        for process in list(RUNNING):
            process.terminate()
        print_table([rows[case.name] for case in cases if case.name in rows])
        print("\nCut short: the other scripts were not done.", flush=True)
        os._exit(1)

    signal.signal(signal.SIGTERM, cut_short)

    def one(case: Case) -> None:
        share = free.get()
        try:
            rows[case.name] = row_of(case, args, share)
        finally:
            free.put(share)
        done = {k: v for k, v in rows[case.name].items() if k not in ("diff", "proof")}
        print(json.dumps(done), file=sys.stderr, flush=True)
        if args.json:
            args.json.write_text(json.dumps(list(rows.values()), indent=1))

    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(one, cases))
    return [rows[case.name] for case in cases]


def _gpus() -> list[str]:
    """Those that this process may use, in its own caller's names."""
    import torch

    n = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:n] if visible else [str(i) for i in range(n)]


def machine() -> str:
    """In words, for the table."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    cpus = len(os.sched_getaffinity(0))
    return f"{device}, {cpus} CPUs, torch {torch.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
