"""`with loaderdoctor.monitor():` records the loop inside the block, in a notebook or in code.

The same as `loaderdoctor run` does with a whole script: a process of its own listens, looks around
and writes; the loop's results stay what they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from loaderdoctor.errors import RunError, UsageError
from loaderdoctor.instrument.command import package_root
from loaderdoctor.instrument.entry import REPORT_S, disable_in_forks, record
from loaderdoctor.instrument.session import Session
from loaderdoctor.instrument.session.hooks import Hooks
from loaderdoctor.instrument.session.script_process import place, process_group
from loaderdoctor.instrument.system import user_site
from loaderdoctor.instrument.wire.channel import Channel, ConnectionLostError, LaunchConfig
from loaderdoctor.instrument.wire.protocol import Reported, Told
from loaderdoctor.report import RunFolder, read_report

if TYPE_CHECKING:
    from loaderdoctor.report.model import Report

START_S = 60.0
LISTEN_S = 0.5
END_S = 10.0  # its report is written by then: it only leaves


def hooked(session: Session) -> Hooks:
    """Hooks of this very process, in place from now on; loaders built before are recorded too."""
    hooks = Hooks(session)
    hooks.watch()
    if "torch" in sys.modules:
        session.workers.start()
    disable_in_forks(session)
    return hooks


class monitor:  # noqa: N801 - a context manager, called like a function
    """Records the training loop that runs inside the block, to its end.

    output: a new folder for the report and what is written meanwhile.
    metrics_file: kept up to date with the run's figures, as OpenMetrics text.
    tune: set the training loader to what is measured best while it trains, as `run --tune`;
    "exact" leaves out what would change random draws in workers.

    Of several ranks it records the first. Under `loaderdoctor run` or `diagnose`, which record the
    script already, it does nothing; where the process that listens can't be had, it says so and the
    loop goes on unrecorded. Raises UsageError where another block is being recorded, or `output`
    holds something.
    """

    _open: ClassVar[monitor | None] = None

    def __init__(
        self,
        *,
        output: str | Path | None = None,
        metrics_file: str | Path | None = None,
        tune: bool | Literal["exact"] = False,
    ) -> None:
        if tune not in (False, True, "exact"):
            raise UsageError(f"monitor: tune={tune!r} is not False, True or 'exact'.")
        kind: Literal["on", "exact"] = "exact" if tune == "exact" else "on"
        self._tune: Literal["", "on", "exact"] = kind if tune else ""
        self._output = None if output is None else Path(output)
        self._metrics_file = None if metrics_file is None else Path(metrics_file).absolute()
        self._folder: RunFolder | None = None
        self._session: Session | None = None
        self._hooks: Hooks | None = None
        self._channel: Channel | None = None
        self._listener: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._report: Report | None = None
        self._unrecorded: str | None = None  # why, where nothing is: the loop goes on

    def __enter__(self) -> monitor:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop(failed=kind is not None)

    def start(self) -> None:
        """Record from now on; for those who can't use a `with` statement, as callbacks."""
        if self._folder is not None:
            raise UsageError("monitor: a block can be recorded once; make a new one.")
        if monitor._open is not None:
            raise UsageError("monitor: another loop of this process is being recorded.")
        here = place() or (process_group() if "torch" in sys.modules else None)
        self._unrecorded = None
        if Hooks.active is not None:
            self._unrecorded = "the command records this loop, and has the report"
            return
        if here is not None and here[0] > 0:
            self._unrecorded = "of several ranks the first is recorded, and has the report"
            return
        began_s, label = time.time(), user_site().label
        folder = RunFolder.create(label, output=self._output, at=began_s)
        heard = self._listen(folder, label, began_s)
        if heard is None:
            folder.discard_if_empty()
            self._unrecorded = "this loop went on unrecorded, and there is no report"
            return
        self._folder, (launch_config, channel) = folder, heard
        self._channel = channel
        session = self._session = Session(channel, run_dir=Path(launch_config.run_dir))
        record(session, launch_config)
        monitor._open = self
        self._hooks = hooked(session)
        self._thread = threading.Thread(target=self._hear, name="loaderdoctor", daemon=True)
        self._thread.start()

    def stop(self, *, failed: bool = False) -> None:
        """Stop recording, and wait for the report."""
        session, hooks, thread = self._session, self._hooks, self._thread
        if session is None or hooks is None or thread is None:
            return
        self._session = self._hooks = self._thread = None
        session.script_over("script-failed" if failed else "script-ended", 0)
        hooks.remove(but_epochs=session.handed_over)  # a loader stays as it was handed over
        monitor._open = None
        self._over.wait(REPORT_S)
        if self._listener is not None:
            with suppress(subprocess.TimeoutExpired):
                self._listener.wait(END_S)

    def report(self, *, show: bool = True) -> Report | None:
        """The report; ends the recording. Prints it unless `show` is False.

        None, with a line that says why, where this process was not recorded: ranks above 0, a loop
        that the command records, no process that listens. Raises RunError where none was begun.
        """
        from loaderdoctor.report.console import console_text

        self.stop()
        if self._folder is None:
            if self._unrecorded is None:
                raise RunError("monitor: no recording was begun: enter the block first.")
            sys.stderr.write(f"loaderdoctor: {self._unrecorded}.\n")
            return None
        if self._report is None:
            self._report = read_report(self._folder.path)
        if show:
            print(console_text(self._report, folder=self._folder.path, brief=True))
        return self._report

    def _listen(
        self, folder: RunFolder, label: str, began_s: float
    ) -> tuple[LaunchConfig, Channel] | None:
        """Start the process that listens; None where it can't be had, which is said."""
        from loaderdoctor.commands.run import ListenOptions
        from loaderdoctor.commands.run.listen import Apart

        sums = Path(tempfile.mkdtemp(prefix="loaderdoctor-"))
        apart = Apart(
            pid=os.getpid(),
            options=ListenOptions(
                label=label,
                folder=folder.path,
                made=folder.made,
                sums=sums,
                fail_on=(),
                json_target=None,
                verbose=False,
                metrics_file=self._metrics_file,
                began_s=began_s,
                shown=False,
            ),
        )
        listener = self._listener = subprocess.Popen(
            [sys.executable, "-m", "loaderdoctor.commands.run.listen"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _path_with(package_root())},
            start_new_session=os.name == "posix",
        )
        heard: list[tuple[LaunchConfig, Channel]] = []

        def call() -> None:
            with suppress(OSError, EOFError, ValueError, msgspec.MsgspecError):
                assert listener.stdin is not None
                assert listener.stdout is not None
                with listener.stdin as asked:
                    asked.write(msgspec.json.encode(apart, enc_hook=str))
                told = listener.stdout.read()  # it closes its end once all is said
                config = msgspec.json.decode(told, type=LaunchConfig)
                config = msgspec.structs.replace(config, tune=self._tune)
                heard.append((config, Channel.open(config)))

        # Apart, because neither the pipe nor the connection can be waited for with a limit.
        calling = threading.Thread(target=call, name="loaderdoctor-start", daemon=True)
        calling.start()
        calling.join(START_S)
        if heard:
            return heard[0]
        late = calling.is_alive()
        listener.kill()
        calling.join(END_S)
        with suppress(subprocess.TimeoutExpired):
            listener.wait(END_S)
        if listener.stdout is not None and not calling.is_alive():
            listener.stdout.close()
        shutil.rmtree(sums, ignore_errors=True)
        why = f"did not answer within {START_S:.0f} s" if late else "did not start"
        sys.stderr.write(
            f"loaderdoctor: the process that listens {why}: this loop goes on unrecorded.\n"
        )
        self._listener = None
        return None

    def _hear(self) -> None:
        """On a thread of its own: what is told, until the report is written."""
        channel = self._channel
        assert channel is not None
        while True:
            try:
                message = channel.receive(LISTEN_S)
            except ConnectionLostError:
                break
            if isinstance(message, Told):
                sys.stderr.write(f"loaderdoctor: {message.text}\n")
            elif isinstance(message, Reported):
                break
        self._over.set()


def _path_with(root: str) -> str:
    """PYTHONPATH that finds this package, also where it runs from a checkout."""
    before = os.environ.get("PYTHONPATH")
    return root if not before else f"{before}{os.pathsep}{root}"
