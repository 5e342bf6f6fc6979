"""What is to run and how: checked before it is run, and what its process is told of that."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import shlex
import socket
import sys
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loaderdoctor.errors import UsageError
from loaderdoctor.instrument.command import ConnectionListener
from loaderdoctor.instrument.wire.channel import (
    CHANNEL_VARIABLE,
    LaunchConfig,
    encode_launch_config,
)

# Unless the user set it: keeps kineto's own lines off the user's terminal.
PROFILER_DEFAULTS = {"KINETO_LOG_LEVEL": "99"}
_STDERR = 2
# Larger files are no scripts that anybody wrote; they are not read to find out what they are.
_MAX_BYTES = 4 * 2**20
_CONFIGS = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".json")
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors")
_SHELLS = (".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".bat", ".ps1")
_SHEBANG = re.compile(r"#!.*\b(?:ba|z|k|da)?sh\b")
_USUAL = ("train.py", "main.py", "run.py")
_SPAWNS = ("spawn", "forkserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to run: a script or a module, with its own arguments."""

    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    n_added_args: int = 0  # the first of them, which the user did not type: a recipe's
    n_ranks: int = 1  # more: so many processes of it, as one job by torch's own launcher

    def check(self, command: str = "diagnose") -> None:
        """Raise UsageError where there is no such script, or it can't be one.

        `command` is the one that was asked for.
        """
        if (self.script is None) == (self.module is None):
            raise UsageError("name either a script or, with -m, a module to run.")
        if self.script is not None:
            check_script(Path(self.script), command)

    @property
    def label(self) -> str:
        """`train.py`, or `-m pkg.train`."""
        return self.script if self.script is not None else f"-m {self.module}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How to run it."""

    # Where the script's stdout goes: "stderr" while ours holds the JSON, a file while a live
    # display would be torn by it. Its stderr always passes through.
    stdout: Literal["inherit", "stderr"] | Path = "inherit"
    record_workers: bool = True
    patient: bool = True  # wait for training to begin; False: any loop will do
    # So long after the first step training is followed to another loader; None: ever.
    follow_s: float | None = None

    @contextmanager
    def open_stdout(self) -> Iterator[int | None]:
        """File descriptor for the script's stdout; None: ours."""
        if isinstance(self.stdout, Path):
            with self.stdout.open("ab") as file:
                yield file.fileno()
        else:
            yield _STDERR if self.stdout == "stderr" else None


def launch_config_for(
    target: Target,
    options: LaunchOptions,
    listener: ConnectionListener,
    run_dir: Path,
    *,
    group: bool,
) -> LaunchConfig:
    """What the measuring process, or each one of a group, is told."""
    return LaunchConfig(
        address=listener.address,
        authkey=base64.b64encode(listener.authkey).decode("ascii"),
        run_dir=str(run_dir.resolve()),
        kind="script" if target.script is not None else "module",
        target=target.script or target.module or "",
        args=target.args,
        n_added_args=target.n_added_args,
        record_workers=options.record_workers,
        patient=options.patient,
        follow_s=options.follow_s,
        group=group,
        host=socket.gethostname(),
    )


def environment_with(launch_config: LaunchConfig) -> dict[str, str]:
    return {
        **PROFILER_DEFAULTS,
        **os.environ,
        CHANNEL_VARIABLE: encode_launch_config(launch_config),
    }


def check_script(path: Path, command: str = "diagnose") -> None:
    """Raise UsageError where `path` can't be a script that trains, with what to give instead.

    `command` is the one that was asked for, and is named in what to type.
    """
    name = str(path)
    if path.is_dir():
        scripts = sorted(path.glob("*.py"))
        inside = next((path / usual for usual in _USUAL if (path / usual).is_file()), None)
        if inside is None and len(scripts) == 1:
            inside = scripts[0]
        if inside is not None:
            raise UsageError(f"{name}: a folder. Did you mean {inside}?")
        raise UsageError(f"{name}: a folder. Give the script in it, as {path / _USUAL[0]}.")
    if not path.is_file():
        raise UsageError(f"{name}: no such file. Give the path of the training script.")
    if path.stat().st_size > _MAX_BYTES or path.suffix in _WEIGHTS or name.endswith(".json.gz"):
        _refuse_data(path)
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{name}: a notebook. Measure its loop where it runs, with `with "
            "loaderdoctor.watching():` around it, or make a script of it: jupyter nbconvert --to "
            f"script {name}"
        )
    if path.suffix in _CONFIGS:
        if path.suffix == ".json" and '"traceEvents"' in path.read_text("utf-8", "replace"):
            _refuse_data(path)
        raise UsageError(
            f"{name}: a configuration. Give the script that reads it, and what you give that "
            f"behind it: loaderdoctor {command} train.py --config {name}"
        )
    _check_source(path, command)


def _refuse_data(path: Path) -> None:
    if path.suffix in _WEIGHTS:
        raise UsageError(f"{path}: a model's weights. Give the script that trains it.")
    if path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{path}: a trace. To read it: loaderdoctor analyze {path}")
    raise UsageError(f"{path}: too large for a script. Give the script that trains.")


def _check_source(path: Path, command: str) -> None:
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (SyntaxError, UnicodeDecodeError, OSError):
        return  # Python says it better
    if path.suffix in _SHELLS or _SHEBANG.match(text):
        raise UsageError(f"{path}: a shell script. {_started_by(text, command)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its strings: Python says so when it runs
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        if path.suffix == ".py" and not _is_json(text):
            return  # its own traceback shows the line
        raise UsageError(
            f"{path}: not Python ({error}). Give the Python script that trains."
        ) from None
    _check_relative_imports(path, tree, command)
    _check_main_guard(path, tree)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _started_by(text: str, command: str) -> str:
    """The command to give instead, from the first line that starts Python."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        for i, word in enumerate(words):
            if re.fullmatch(r"(?:\S*/)?python[\d.]*", word):
                given = words[i + 1 :]
                if given[:1] and not given[0].startswith("-c"):
                    return f"Give what it starts: loaderdoctor {command} {shlex.join(given)}"
    return f"Give the Python script that it starts: loaderdoctor {command} train.py …"


def _check_relative_imports(path: Path, tree: ast.Module, command: str) -> None:
    """A file of a package that imports its neighbours runs as a module alone."""
    levels = [
        node.level for node in tree.body if isinstance(node, ast.ImportFrom) and node.level > 0
    ]
    if not levels:
        return
    place = path.resolve()
    parts = [place.stem] if place.stem != "__main__" else []
    folder = place.parent
    while (folder / "__init__.py").is_file() or len(parts) <= max(levels):
        parts.insert(0, folder.name)
        if folder.parent == folder:
            break
        folder = folder.parent
    at = "" if folder == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    raise UsageError(
        f"{path}: imports from its own package (`from .`), which a file alone has not. Run it as "
        f"a module: {at}loaderdoctor {command} -m {'.'.join(parts)}"
    )


def _check_main_guard(path: Path, tree: ast.Module) -> None:
    """Workers that are spawned import the script, which must not train again as they do."""
    loaders = [call for call in _calls_at_import(tree) if _name(call.func) == "DataLoader"]
    has_workers = any(_number(call, "num_workers") > 0 for call in loaders)
    if not has_workers or _has_guard(tree) or not _starts_by_spawning(tree):
        return
    raise UsageError(
        f"{path}: its workers are spawned and import it again, so none can start. Put what trains "
        'under `if __name__ == "__main__":`.'
    )


def _calls_at_import(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that importing the file makes: those outside of functions and classes."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _number(call: ast.Call, name: str) -> int:
    value = next((word.value for word in call.keywords if word.arg == name), None)
    number = value.value if isinstance(value, ast.Constant) else None
    return number if isinstance(number, int) else 0


def _has_guard(tree: ast.Module) -> bool:
    """Whether `__name__` is asked for anywhere: then it may be a guard."""
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(tree))


def _starts_by_spawning(tree: ast.Module) -> bool:
    """Whether each start method that the script names spawns; with none, the system's own."""
    named = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in ("fork", *_SPAWNS)
    }
    if named:
        return "fork" not in named
    return sys.platform in ("win32", "darwin") or sys.version_info >= (3, 14)
