"""The script as it was started, and the user's own files: what advice is written into."""

from __future__ import annotations

import os
import re
import sys
import tokenize
from pathlib import Path

import msgspec

from loaderdoctor.instrument.system.interpreter import is_own
from loaderdoctor.instrument.wire.channel import LaunchConfig
from loaderdoctor.instrument.wire.records import ScriptRecord

# A script with its modules; what is more is no place that advice is about.
MAX_FILES = 40
MAX_LETTERS = 600_000
_ABOUT = (re.compile(rb"DataLoader|num_workers"), re.compile(rb"Dataset|__getitem__"))


def script_of(launch_config: LaunchConfig, *, n_ranks: int = 1) -> ScriptRecord:
    """How it was started; `with_sources` adds its files once they are loaded."""
    path = launch_config.kind == "script"
    return ScriptRecord(
        given=launch_config.target if path else None,
        module=None if path else launch_config.target,
        args=launch_config.args,
        n_added_args=launch_config.n_added_args,
        n_ranks=n_ranks,
        cwd=str(Path.cwd()),
        launched="TORCHELASTIC_RUN_ID" in os.environ,
    )


def with_sources(script: ScriptRecord | None) -> ScriptRecord | None:
    """The record with the main script and the modules of its folder that are loaded."""
    if script is None:
        return None
    sources: dict[str, str] = {}
    left = MAX_LETTERS
    files = _files()
    if len(files) > MAX_FILES:  # a library next to the script: what advice is about, first
        files = [*files[:1], *sorted(files[1:], key=_distance)]
    for path in files:
        if len(sources) == MAX_FILES:
            break
        try:
            with tokenize.open(path) as file:  # in the encoding that it declares
                text = file.read()
        except (OSError, UnicodeDecodeError, SyntaxError):
            continue
        if len(text) <= left:
            sources[path] = text
            left -= len(text)
    return msgspec.structs.replace(script, sources=sources)


def _distance(path: str) -> int:
    """0 for a file that speaks of loaders, 1 of datasets, 2 of neither."""
    try:
        text = Path(path).read_bytes()
    except OSError:
        return len(_ABOUT)
    return next((i for i, words in enumerate(_ABOUT) if words.search(text)), len(_ABOUT))


def _files() -> list[str]:
    """The main script, then modules that lie below its folder or the working one."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(main, str):
        return []
    first = os.path.realpath(main)
    found = {first: None}
    folders = tuple({str(Path(first).parent) + os.sep, str(Path.cwd()) + os.sep})
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py"):
            path = os.path.realpath(path)
            if path.startswith(folders) and is_own(path):
                found[path] = None
    return list(found)
