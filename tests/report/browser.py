"""A headless Chromium, driven over its pipe: what a page does when a browser opens it.

The DevTools protocol over file descriptors 3 and 4 needs no port and no further package.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def executable() -> str | None:
    """The installed browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(slots=True)
class Page:
    """One page; `messages` and `requests` are what it said and asked for since it was opened."""

    to_browser: int
    from_browser: int
    session: str = ""
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _number: int = 0

    def open(self, path: Path, *, width: int, height: int = 844, dark: bool = False) -> None:
        """Load a file at this width, and wait until it is there."""
        self.measurement(path.as_uri(), width=width, height=height, dark=dark)

    def measurement(self, url: str, *, width: int, height: int = 844, dark: bool = False) -> None:
        """Load an address at this width, and wait until it is there."""
        self.messages.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, awaited where it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, *, seconds: float = 60.0) -> Any:
        """The value of the expression once it is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.1)
        raise AssertionError(f"never in {seconds:.0f} s: {expression}")

    def picture(self, target: Path, *, whole: bool = True) -> None:
        """The page as a PNG: the whole of it, or what the window shows."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        target.write_bytes(base64.b64decode(shot["data"]))

    def printed(self) -> bytes:
        """The page as a PDF, as it would be printed."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda message: message.get("id") == number)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, wanted: Any) -> dict[str, Any]:
        while True:
            while b"\0" not in self._rest:
                more = os.read(self.from_browser, 1 << 16)
                assert more, "the browser closed its pipe"
                self._rest += more
            text, _, self._rest = self._rest.partition(b"\0")
            message: dict[str, Any] = json.loads(text)
            self._note(message)
            if wanted(message):
                return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Log.entryAdded":
                self.messages.append(parameters["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.messages.append(json.dumps(parameters))
            case "Page.javascriptDialogOpening":
                self.messages.append("dialog: " + parameters["message"])


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a browser of its own, gone when the block ends."""
    path = executable()
    assert path is not None
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()

    def take_pipes() -> None:
        os.dup2(in_read, 13)
        os.dup2(out_write, 14)
        os.dup2(13, 3)
        os.dup2(14, 4)

    # Helpers of the browser may write there for a moment after it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=take_pipes,
        )  # fmt: skip
        os.close(in_read)
        os.close(out_write)
        try:
            page = Page(in_write, out_read)
            target = page.call("Target.createTarget", url="about:blank")["targetId"]
            attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
            page.session = attached["sessionId"]
            for domain in ("Page", "Network", "Log", "Runtime"):
                page.call(f"{domain}.enable")
            yield page
        finally:
            process.terminate()
            process.wait(30)
            os.close(in_write)
            os.close(out_read)
