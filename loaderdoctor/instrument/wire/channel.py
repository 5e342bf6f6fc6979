"""What a process that runs the script is told at its start, and its connection to the command."""

from __future__ import annotations

import base64
import os
import select
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from loaderdoctor.errors import LoaderdoctorError, UsageError
from loaderdoctor.instrument.wire.protocol import Ended, FromRun, ToRun

# Each is taken out of the environment before the user's code can see it.
CHANNEL_VARIABLE = "LOADERDOCTOR_CHANNEL"
CHECKED_VARIABLE = "LOADERDOCTOR_CHECKED"

# A path, or host and port where ranks on other machines connect.
Address = str | tuple[str, int]
# Steps whose inputs are kept whole, to say how far they differ where their hashes do.
N_KEPT = 2
# A recorded run waits so long for one that listens but does not read, once; and for its last words.
# Behind that it keeps what is not sent: beats of about an hour. Then it is as if nobody listened.
PATIENCE_S, LAST_S = 0.2, 5.0
MAX_UNSENT_BYTES = 4_000_000
N_DIGEST_BYTES = 8  # of a sample: a million of them are all told apart, but once in 10 million


class ConnectionLostError(LoaderdoctorError):
    """The command is gone: nobody listens any more."""


class LaunchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the measuring process must know before it runs the script."""

    address: Address
    authkey: str  # base64
    run_dir: str
    kind: Literal["script", "module"]
    target: str
    args: tuple[str, ...]
    n_added_args: int = 0  # the first of them, which the user did not type
    record_workers: bool = True
    patient: bool = True  # wait for training to begin
    follow_s: float | None = None  # see Session
    group: bool = False  # one of several ranks: RANK and WORLD_SIZE say which
    by_thread: bool = False  # the script started it, in a thread that may end before it
    host: str = ""  # where the command runs
    watch: bool = False  # record the whole run, change nothing; see `recording`
    sums_dir: str = ""  # `watch`: of sums that workers keep; each process has its own below it
    waits: bool = False  # `watch`: for the report, at its end
    judged: bool = False  # `watch`: the report decides on the exit code; without one it is not 0
    profile: bool = False  # `watch`: some steps with the profiler first
    tune: Literal["", "on", "exact"] = ""  # `watch`: and set the loader


def encode_launch_config(launch_config: LaunchConfig) -> str:
    """The value of the environment variable. Raises UsageError for names that are no text."""
    try:
        return base64.b64encode(msgspec.json.encode(launch_config)).decode("ascii")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{ascii(error.object)[1:-1]}: names and arguments must be UTF-8. Rename it, or give a "
            "link that has such a name."
        ) from None


def decode_launch_config(text: str | bytes) -> LaunchConfig:
    """What was encoded."""
    return msgspec.json.decode(base64.b64decode(text), type=LaunchConfig)


def take_launch_config() -> LaunchConfig:
    """Read and remove the variable. Raises LoaderdoctorError where it is missing."""
    launch_config = peek_launch_config()
    if launch_config is None:
        raise LoaderdoctorError(
            f"{CHANNEL_VARIABLE}: not set. This module is started by `loaderdoctor`, not by hand."
        )
    del os.environ[CHANNEL_VARIABLE]
    return launch_config


def peek_launch_config() -> LaunchConfig | None:
    """The same, and the variable stays; None where there is none."""
    text = os.environ.get(CHANNEL_VARIABLE)
    return None if text is None else decode_launch_config(text)


def encoded(message: FromRun | ToRun) -> bytes:
    """As it is sent. What is no text, as names of files need not be, has "?" in its place."""
    try:
        return msgspec.json.encode(message, enc_hook=_as_plain)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(msgspec.to_builtins(message, enc_hook=_as_plain)))


def _as_plain(value: Any) -> Any:
    """A number of NumPy's or torch's that was taken from the user's objects, as Python's own."""
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):  # a class of its own, or many numbers
        raise TypeError(f"{type(value).__name__} can't be sent") from None


def _as_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_as_text(name): _as_text(one) for name, one in value.items()}
    return [_as_text(one) for one in value] if isinstance(value, (list, tuple)) else value


class Link(Protocol):
    """What the session needs of whoever decides."""

    @property
    def lost(self) -> bool:
        """Whether nobody listens any more."""

    def send(self, message: FromRun) -> None:
        """Send one message; where nobody listens any more, nothing happens."""

    def receive(self, timeout_s: float) -> ToRun | None:
        """The next request, or None after `timeout_s`. Raises ConnectionLostError."""

    def forget_in_fork(self) -> None:
        """In a forked child: the link stays the parent's."""

    @property
    def n_above(self) -> int:
        """Processes of this run above this one: the command, and what starts ranks for it."""


# For a call alone, so that the connection's own reads wait as before; without SIGPIPE, which a
# script may have set to end it.
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


class Unsent:
    """Sends messages over a socket as a `Connection` does, and has what it did not take yet.

    `fd`: of a connection, which reads from it and stays its owner.
    """

    def __init__(self, fd: int) -> None:
        self.messages: deque[bytes] = deque()  # the first perhaps without its beginning
        self._n_bytes = 0
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setblocking(True)  # as the connection's, whatever the script's default is
        self._stalled = False

    def send(self, message: bytes, patience_s: float | None = None) -> None:
        """As far as it is taken without standing still for `patience_s`, or PATIENCE_S once.

        Raises OSError where the other end is gone, or has taken nothing for too long.
        """
        self.messages.append(struct.pack("!i", len(message)) + message)
        self._n_bytes += len(self.messages[-1])
        if patience_s is None:
            patience_s = 0.0 if self._stalled else PATIENCE_S
        self.push(patience_s)
        if self._n_bytes > MAX_UNSENT_BYTES:
            # So that it does not wait for the rest of a message, once it goes on.
            self._socket.shutdown(socket.SHUT_RDWR)
            raise TimeoutError

    def push(self, patience_s: float) -> None:
        """The same of what is left: one by one, as a short one is taken whole or not at all.

        Of half a message who listens would wait for the rest.
        """
        while self.messages:
            data = self.messages[0]
            try:
                n_sent = self._socket.send(data, _AT_ONCE)
            except BlockingIOError:
                room = select.poll()
                room.register(self._socket, select.POLLOUT)
                if not room.poll(1e3 * patience_s):
                    self._stalled = True
                    return
                continue
            self._n_bytes -= n_sent
            if n_sent < len(data):
                self.messages[0] = data[n_sent:]
            else:
                self.messages.popleft()
        self._stalled = False

    def close(self) -> None:
        self._socket.close()

    __del__ = close  # with the connection


@dataclass(slots=True)
class Channel:
    """A connection that carries our messages only; usable from any thread of this process.

    Who listens to a recorded run may stand still: its terminal does, or the disk that it writes to.
    The run goes on, and what is not taken is `kept` for later.
    """

    connection: Connection
    lost: bool = False
    n_above: int = 1  # see `Link`
    kept: Unsent | None = None  # None: whoever listens is waited for
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def open(launch_config: LaunchConfig) -> Channel:
        """Connect to the command that started us."""
        key = base64.b64decode(launch_config.authkey)
        # A rank has the launcher between itself and the command, or above the command; a rank that
        # the script starts has the script.
        # A process that is recorded took the command's place: see `entry`.
        n_above = (2 if launch_config.group else 1) - launch_config.watch
        connection = Client(launch_config.address, authkey=key)
        keeps = launch_config.watch and os.name == "posix"  # elsewhere it is no socket
        return Channel(
            connection, n_above=n_above, kept=Unsent(connection.fileno()) if keeps else None
        )

    def send(self, message: FromRun) -> None:
        """Send one message; a lost connection is remembered, not raised."""
        if self.lost:
            return
        data = encoded(message)
        try:
            with self._lock:
                if self.kept is None:
                    self.connection.send_bytes(data)
                else:
                    self.kept.send(data, LAST_S if isinstance(message, Ended) else None)
        except (OSError, EOFError):
            self.lost = True

    def receive(self, timeout_s: float) -> ToRun | None:
        try:
            if self.kept is not None and self.kept.messages:
                with self._lock:
                    self.kept.push(0.0)
            if not self.connection.poll(timeout_s):
                return None
            data = self.connection.recv_bytes()
        except (OSError, EOFError) as error:
            self.lost = True
            raise ConnectionLostError("the command that started this run is gone") from error
        message: ToRun = msgspec.json.decode(data, type=ToRun)
        return message

    def forget_in_fork(self) -> None:
        """Close our copy of the connection in a forked child, so that its end is seen as ours."""
        self.lost = True
        self.connection.close()
        if self.kept is not None:
            self.kept.close()


class CheckedSamples(msgspec.Struct, frozen=True, kw_only=True):
    """What to see of the samples: whole epochs, until so long has passed."""

    n_epochs: int
    limit_s: float
    n_rows: int | None = (
        None  # so many samples from the first on, too: where no epoch is seen to end
    )


class CheckedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a script is run to be compared with its changed form."""

    kind: Literal["script", "module"]
    target: str
    args: tuple[str, ...]
    out: str  # folder for `CheckedRun` and the inputs that are kept
    seconds: float  # of timing, from the last checked step on
    n_checked: int  # training steps whose inputs and losses are recorded, before any is timed
    seed: int
    moved: tuple[str, str] | None = None  # the folder that was copied, and its copy
    fixed_draws: bool = False  # every batch drawn with a seed of its own
    samples: CheckedSamples | None = None  # nothing is timed then; each sample has its own seed


class CheckedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One training step: what reached the model, and the loss that came out."""

    inputs: str | None  # hash of the tensors the model was called with; None: not seen
    loss: float | None  # sum of what `backward` was called on; None: no single numbers


class CheckedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run left. `step_ns` are the ends of the timed steps, by the host's clock."""

    steps: tuple[CheckedStep, ...]
    step_ns: tuple[int, ...]
    ended: Literal["stopped", "script-ended"]
    # Of a run with fixed draws: whether they were. In a thread beside the loop they can't be, whose
    # draws of the same generators come whenever they come.
    draws_fixed: bool = True
    # Also of such a run: whether a batch came again, which then drew what it drew before; whether
    # a dataset was gone through again (None: no loader's pass was seen).
    draws_repeated: bool = False
    epoch_ended: bool | None = None
    # Of a run whose samples are seen: whole epochs, each in its `samples_file`; whether all rows
    # had one shape; whether making any drew random numbers, which are the same in each epoch then.
    n_epochs: int = 0
    rows_alike: bool = True
    samples_drawn: bool = False
    versions: str = ""  # of torch and Python
    foreign: tuple[str, ...] = ()  # modules that came from the original although the copy has them

    def write(self, folder: Path) -> None:
        """Whole or not at all."""
        part = folder / "run.part"
        part.write_bytes(msgspec.json.encode(self))
        part.replace(folder / "run.json")

    @classmethod
    def read(cls, folder: Path) -> CheckedRun | None:
        """None where the run did not get as far as to leave one."""
        try:
            return msgspec.json.decode((folder / "run.json").read_bytes(), type=cls)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


def inputs_file(folder: Path, step: int) -> Path:
    """Where the tensors of a checked step are kept: numpy.savez, each as float64, in order."""
    return folder / f"inputs{step}.npz"


def draws_file(folder: Path) -> Path:
    """There once making a sample drew a random number, in whatever process."""
    return folder / "drawn"


def samples_file(folder: Path, epoch: int | None) -> Path:
    """Digests of an epoch's samples (None: of the first samples), one behind the other."""
    return folder / f"{'first' if epoch is None else f'epoch{epoch}'}.samples"
