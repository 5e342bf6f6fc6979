"""What was given in place of a trace, told before it is read: each with its way out."""

from __future__ import annotations

from pathlib import Path

from loaderdoctor.errors import UsageError

_GIVE = "Give what torch.profiler exported, a .json or .json.gz file."
# What no trace is called; files with other endings are read, whatever their name.
_OTHERS = {
    ".py": "a script, not a trace. To measure it: loaderdoctor diagnose {path}",
    ".ipynb": "a notebook, not a trace. Measure its loop where it runs, with `with "
    "loaderdoctor.watching():` around it.",
    ".pkl": f"a pickle, not a trace, and is not opened. {_GIVE}",
    ".pickle": f"a pickle, not a trace, and is not opened. {_GIVE}",
}
_OTHERS |= dict.fromkeys((".pt", ".pth", ".ckpt"), f"a model's weights, not a trace. {_GIVE}")
_OTHERS |= dict.fromkeys((".sh", ".bash", ".slurm"), f"a shell script, not a trace. {_GIVE}")
_OTHERS |= dict.fromkeys((".yaml", ".yml", ".toml"), f"a configuration, not a trace. {_GIVE}")


def check_trace(path: Path) -> None:
    """Raise UsageError where the name says that this file is something else."""
    said = _OTHERS.get(path.suffix)
    if said is not None and path.is_file():
        raise UsageError(f"{path}: {said.format(path=path)}")
