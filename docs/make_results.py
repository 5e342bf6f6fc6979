"""Writes docs/results/<machine>/<name>.md, and its plots, from run folders.

    python docs/make_results.py --machine "2-core x86-64, CPU only" --revision HASH RUN…

Everything on a page comes from the run's own report.json and samples.npz, so pages of different
machines are made alike. `--state` says what a report can't know, for example what else ran. Plots
that the run did not keep are drawn from its report.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from loaderdoctor.report import RunFolder, read_report
from loaderdoctor.report.charts.draw import write_plots

RESULTS = Path(__file__).with_name("results")
MAX_PLOT_BYTES = 150_000
PLOT_WIDTH = 1200  # pixels at most; halved until the file is small enough
COLOURS = 64


def command_of(run: Path) -> tuple[str, str]:
    """(name of the page, the command line) from what the run stored of its options."""
    with np.load(run / "samples.npz") as samples:
        options = json.loads(str(samples["description"]))["options"]
    words = ["loaderdoctor", "sweep"]
    name = options["preset"] or ("loader-only" if options["loader_only"] else None)
    if options["preset"]:
        words += ["--preset", options["preset"]]
    if options["loader_only"]:
        words.append("--loader-only")
    if options["recipe"]:
        words += ["--recipe", options["recipe"]]
    for token in options["grid"]:
        words += ["--grid", token if isinstance(token, str) else "=".join(map(str, token))]
    if options["search"] != "grid":
        words += ["--search", options["search"]]
    if options["isolate"]:
        words.append("--isolate")
    if options["budget_s"] is not None:
        words += ["--budget", f"{options['budget_s']:g}"]
    words += options["target"]
    name = name or f"sweep-{options['recipe'] or Path((options['target'] or ['script'])[0]).stem}"
    return name, shlex.join(words)


def number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table without the columns that say nothing in any row."""
    kept = [i for i in range(len(heads)) if any(row[i] not in ("–", "") for row in rows)]
    lines = ["| " + " | ".join(heads[i] for i in kept) + " |", "|" + "---|" * len(kept)]
    return lines + ["| " + " | ".join(_cell(row[i]) for i in kept) + " |" for row in rows]


def _shares(shares: dict[str, float | None] | None) -> str:
    """Of the step, from the row's trace."""
    if shares is None:
        return "–"
    known = (shares[name] for name in ("input", "copy", "host", "compute"))
    return "/".join("–" if share is None else f"{100 * share:.0f}" for share in known)


def trial_rows(trials: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for i, trial in enumerate(trials):
        interval = trial["step_ms_ci"]
        half = f" ± {number((interval[1] - interval[0]) / 2)}" if interval else ""
        shared = trial["same_as"]
        said = [trial["status"] if trial["status"] != "ok" else "", trial["reason"] or ""]
        said += [f"as {shared}" if shared is not None else "", trial["note"] or ""]
        gib = trial["gpu_peak_allocated_bytes"]
        host = trial["host_bytes"]
        rows.append(
            [
                str(i),
                trial["group"] or "–",
                trial["row"] or trial["label"],
                str(trial["n_windows"] or "–"),
                number(trial["step_ms"]) + half,
                number(trial["samples_per_s"], 0),
                number(trial["time_ratio"], 2),
                number(trial["epoch_s"], 2),
                number(trial["startup_s"], 2),
                number(host and host / 2**20, 0),
                number(gib and gib / 2**20, 0),
                _shares(trial["shares"]),
                "; ".join(filter(None, said)) or "–",
            ]
        )
    return rows


HEADS = [
    "#",
    "group",
    "row",
    "windows",
    "step ms",
    "samples/s",
    "time ratio",
    "epoch s",
    "start-up s",
]
HEADS += ["host MiB", "GPU peak MiB", "input/copy/host/compute %", "remarks"]


def small_png(source: Path) -> bytes:
    """The plot in few colours, and smaller where that is not enough."""
    from PIL import Image

    with Image.open(source) as opened:
        image = opened.convert("RGB")
    width = min(PLOT_WIDTH, image.width)
    while True:
        size = (width, round(image.height * width / image.width))
        target = io.BytesIO()
        scaled = image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)
        scaled.quantize(COLOURS).save(target, "PNG", optimize=True)
        if target.tell() <= MAX_PLOT_BYTES:
            return target.getvalue()
        width //= 2


def page(report: dict[str, Any], name: str, command: str, made: str, args: Any) -> list[str]:
    """The page's lines, but for its plots."""
    environment = report["environment"]
    device = environment["device_name"] or "CPU only"
    about = f"{args.machine}: {environment['usable_cpus']:g} usable CPUs, {device}, Python "
    about += f"{environment['python']}, torch {environment['torch']}; {made}, "
    about += f"revision {args.revision}."
    lines = [f"# {name} · {args.machine}", "", f"    {command}", "", about]
    if args.state:
        lines[-1] += f" {args.state}"
    lines += ["", report["verdict"]["summary"], "", "## Rows", ""]
    lines += table(HEADS, trial_rows(report["trials"]))
    if report["claims"]:
        heads = ["claim", "published", "here", "verdict", "reason"]
        rows = [
            [c["claim"], c["published"], c["ours"] or "–", c["verdict"], c["reason"] or "–"]
            for c in report["claims"]
        ]
        lines += ["", "## Claims", "", *table(heads, rows)]
    if report["warnings"]:
        lines += ["", "## To know", ""]
        lines += [f"- {warning['text']}" for warning in report["warnings"]]
    lines += ["", "## How it was measured", "", *(f"- {one}" for one in report["method"])]
    return lines


def write(run: Path, args: Any) -> Path:
    """The page of one run; raises SystemExit with a line where the folder is no finished sweep."""
    try:
        report = json.loads((run / "report.json").read_text())
        name, command = command_of(run)
    except (OSError, KeyError, ValueError) as error:
        raise SystemExit(f"{run}: no sweep's run folder ({error})") from None
    made = datetime.fromtimestamp((run / "report.json").stat().st_mtime, timezone.utc)
    folder = RESULTS / re.sub(r"[^a-z0-9]+", "-", args.machine.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    lines = page(report, name, command, f"{made:%Y-%m-%d}", args)
    if not (run / "plots").is_dir():
        write_plots(read_report(run), RunFolder(path=run))
    plots = sorted((run / "plots").glob("*.png"))
    if plots:
        lines += ["", "## Plots", ""]
    for plot in plots:
        (folder / f"{name}-{plot.name}").write_bytes(small_png(plot))
        lines += [f"![{plot.stem}]({name}-{plot.name})", ""]
    target = folder / f"{name}.md"
    target.write_text("\n".join(lines).rstrip() + "\n")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--machine", required=True, help="its name, and that of the folder")
    parser.add_argument("--revision", required=True, help="the commit that ran")
    parser.add_argument("--state", default="", help="a sentence on what else the machine did")
    args = parser.parse_args()
    for run in args.runs:
        print(write(run, args).relative_to(RESULTS.parent.parent))


if __name__ == "__main__":
    main()
