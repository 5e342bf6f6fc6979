"""What TensorBoard's PyTorch plugin says of our traces, beside what we say: docs/tensorboard.md.

    python benchmarks/plugin_figures.py [--write docs/tensorboard.md] [TRACE ...]

Every trace is written as torch left it and in our dialect; one real TensorBoard serves both, and
its HTTP API is asked for the steps and for DataLoader's part of the step. `--write` replaces the
table of the page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import shutil
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard import program
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.event_parser import ProfileRole
from torch_tb_profiler.profiler.run_generator import RunGenerator

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.attribution.pictures import tracks
from loaderdoctor.report.traces import Overlay
from loaderdoctor.report.traces.tensorboard import write_plugin_trace
from loaderdoctor.trace import read_trace

TRACES = Path(__file__).parent.parent / "traces"
FILE = "host_0.1.pt.trace.json.gz"
BEGIN, END = "<!-- table: benchmarks/plugin_figures.py -->", "<!-- end -->"
_START_S = 300.0
# A worker's row as `diagnose` adds it; here it only has to be there.
TRACKS = (
    {"ph": "M", "name": "process_name", "pid": 77001, "tid": 0, "args": {"name": "worker 0"}},
    {"ph": "X", "cat": "dataloader_worker", "name": "fetch", "pid": 77001, "tid": 77001,
     "ts": 4961860580960.0, "dur": 5000.0, "args": {}},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    """Steps of a trace, and the part of them that waits for the loader (0…1)."""

    n_steps: int
    input_share: float


def write_dialect(trace: Path, target: Path, *, with_tracks: bool) -> Said:
    """The trace as `analyze --tensorboard` writes it; what we say of it ourselves."""
    attributed = attribute(read_trace(trace))
    waits = Overlay.of(tracks(attributed)).waits_outside_next
    written = write_plugin_trace(
        trace, target, extra_waits=waits, tracks=TRACKS if with_tracks else ()
    )
    shares = facts_of(attributed).shares
    assert shares is not None
    assert shares.input is not None
    return Said(written.n_steps, shares.input)


def said_by_parser(trace: Path) -> Said:
    """The plugin's own reading of a file."""
    data = RunProfileData.parse("worker", "1", str(trace), str(trace.parent))
    RunGenerator("worker", "1", data).generate_run_profile()
    costs = data.avg_costs.costs
    share = costs[ProfileRole.DataLoader] / costs[ProfileRole.Total]
    return Said(len(data.steps_names), share)


class Api:
    """The plugin's HTTP API on a TensorBoard of this process."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **query: str) -> Any:
        url = f"{self._address}data/plugin/pytorch_profiler/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)

    def said(self, run: str) -> Said:
        """What the overview page shows of a run."""
        (worker,) = self.ask("workers", run=run, view="Overview")
        (span,) = self.ask("spans", run=run, worker=worker)
        overview = self.ask("overview", run=run, view="Overview", worker=worker, span=span)
        parts = {part["name"]: part for part in overview["performance"][0]["children"]}
        return Said(len(overview["steps"]["rows"]), parts["DataLoader"]["extra"] / 100.0)


@contextmanager
def served(logdir: Path, n_runs: int) -> Iterator[Api]:
    """A real TensorBoard over the folder, once its plugin has read that many runs."""
    logging.getLogger("pytorch_profiler").setLevel(logging.CRITICAL)
    board = program.TensorBoard()
    board.configure(logdir=str(logdir), host="127.0.0.1", port=0)
    api = Api(board.launch())
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        answer = api.ask("runs")
        if len(answer["runs"]) >= n_runs and not answer["loading"]:
            yield api
            return
        time.sleep(0.5)
    raise TimeoutError(f"the plugin read {len(answer['runs'])} of {n_runs} runs")


def rows(traces: Sequence[Path]) -> Iterator[tuple[str, Said, Said, Said, Said]]:
    """Name; what we say, the plugin of our file (parser, API), the plugin of torch's own file."""
    with tempfile.TemporaryDirectory() as folder:
        logdir = Path(folder)
        names = [trace.name.partition(".")[0] for trace in traces]
        ours, parsed = {}, {}
        for name, trace in zip(names, traces, strict=True):
            for run in (name, f"{name}-untouched"):
                (logdir / run).mkdir()
            ours[name] = write_dialect(trace, logdir / name / FILE, with_tracks=True)
            parsed[name] = said_by_parser(logdir / name / FILE)
            untouched = logdir / f"{name}-untouched" / FILE
            if trace.suffix == ".gz":
                shutil.copy(trace, untouched)
            else:  # the plugin goes by the name
                untouched.write_bytes(gzip.compress(trace.read_bytes()))
        with served(logdir, 2 * len(names)) as api:
            for name in names:
                yield name, ours[name], parsed[name], api.said(name), api.said(f"{name}-untouched")


def table(traces: Sequence[Path]) -> str:
    lines = [
        "| trace | steps: ours / plugin | input %: ours / plugin | torch's own file: steps, "
        "DataLoader % |",
        "|---|---:|---:|---:|",
    ]
    for name, ours, parsed, api, untouched in rows(traces):
        if (parsed.n_steps, round(100 * parsed.input_share)) != (
            api.n_steps,
            round(100 * api.input_share),
        ):
            raise SystemExit(f"{name}: the plugin's parser says {parsed}, its API {api}")
        lines.append(
            f"| `{name}` | {ours.n_steps} / {api.n_steps} | {100 * ours.input_share:.1f} / "
            f"{100 * api.input_share:.1f} | {untouched.n_steps}, "
            f"{100 * untouched.input_share:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", type=Path, nargs="*", help="by default those in traces/")
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    args = parser.parse_args()
    made = table(args.traces or sorted(TRACES.glob("*.pt.trace.json.gz")))
    print(made)
    if args.write is not None:
        before, _, rest = args.write.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        args.write.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    main()
