"""What a checked run (a script in a fresh process) is told, and what it leaves on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

# One variable, taken out of the environment before the user's code can see it.
CHECKED_VARIABLE = "LOADERDOCTOR_CHECKED"
# Steps whose inputs are kept whole, to say how far they differ where their hashes do.
N_KEPT = 2
N_DIGEST_BYTES = 8  # of a sample: a million of them are all told apart, but once in 10 million


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
    n_warm_up: int  # steps before the timed ones, the checked ones included
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
