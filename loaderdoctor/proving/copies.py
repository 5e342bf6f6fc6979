"""Copies of a script's folder, so that proving writes nothing into the user's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderdoctor import format as fmt
from loaderdoctor.errors import UsageError

# Nothing that a script needs to run, and often large.
LEFT_OUT = frozenset(
    {".git", ".hg", ".venv", "venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache",
     "node_modules", "loaderdoctor-runs", "wandb", "lightning_logs", "mlruns", "runs"}
)  # fmt: skip
# Above this a folder holds data rather than code; copying it would take longer than proving.
MAX_COPY_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A copy of `root`; `cwd` and the script are told by where they lie in it."""

    root: Path
    copy: Path

    def here(self, path: Path) -> Path:
        """Where a file or folder of the original lies in the copy."""
        return self.copy / path.resolve().relative_to(self.root)

    def write(self, path: Path, content: bytes) -> None:
        """Another content for a file of the original, in the copy alone.

        Raises UsageError where the copy has none of its own: what is shared is the user's.
        """
        if not path.resolve().is_relative_to(self.root):
            raise UsageError(f"{path}: the change is outside {self.root}, which is what is copied.")
        here = self.here(path)
        if not here.resolve().is_relative_to(self.copy.resolve()):
            raise UsageError(
                f"{path}: the change is in a shared folder: it would be written into your own. "
                "Leave that folder out of --share."
            )
        if not here.is_file():
            raise UsageError(f"{path}: the change is in a folder that is left out of the copy.")
        here.write_bytes(content)


def root_of(script: Path, cwd: Path) -> Path:
    """What to copy: the repository, else the folder that holds both; else the script's own.

    A working folder outside of it is then a copy of its own.
    """
    script, cwd = script.resolve(), cwd.resolve()
    for folder in script.parents:
        if (folder / ".git").exists() and cwd.is_relative_to(folder):
            return folder
    if script.parent.is_relative_to(cwd):
        return cwd
    return script.parent


def copied(root: Path, to: Path, *, shared: Sequence[Path] = ()) -> Tree:
    """A copy of `root`, in which folders that are `shared` are links to the user's own.

    Links that lead out of it are followed: what they lead to is copied like the rest, or shared.
    Sockets and pipes are left out. Raises UsageError where a shared folder is not within `root`,
    where something can't be read, and where what is to be copied is larger than `MAX_COPY_BYTES`:
    the message names the largest.
    """
    root = root.resolve()
    links = {_within(root, path) for path in shared}
    links = {path for path in links if not links & set(path.parents)}
    outward = {path for path in _outward(root, links) if path not in links}
    sizes: dict[Path, int] = {}
    for file, size in _sized(root, links, outward):
        part = file.relative_to(root).parts
        top = root / part[0] if len(part) > 1 or file in outward else root
        sizes[top] = sizes.get(top, 0) + size
    if sum(sizes.values()) > MAX_COPY_BYTES:
        largest = max(sizes, key=lambda path: sizes[path])
        name = os.path.relpath(largest)
        raise UsageError(
            f"{root} holds {fmt.n_bytes(sum(sizes.values()))}, most of it in {name}: too much to "
            f"copy. With --share {name} the runs read your own {name}; name there only what the "
            "script does not write into."
        )

    def left_out(folder: str, names: list[str]) -> list[str]:
        here = Path(folder).resolve()
        apart = links | outward
        return [n for n in names if n in LEFT_OUT or here / n in apart or _is_special(here / n)]

    _copy(root, to, left_out)
    _point_links_inside(root, to)
    for link in sorted(links):
        target = to / link.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(link)
    for link in sorted(outward):
        target = to / link.relative_to(root)
        if not _is_special(link):
            _copy(link, target, _specials)
    return Tree(root=root, copy=to)


def _is_special(path: Path) -> bool:
    """A socket or a pipe, which nobody can copy."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _specials(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if _is_special(Path(folder, n))]


def _copy(path: Path, to: Path, left_out: Callable[[str, list[str]], list[str]]) -> None:
    """A file, or a folder with its links. Raises UsageError for what can't be read."""
    try:
        if path.is_dir():
            shutil.copytree(path, to, symlinks=True, ignore=left_out)
        else:
            shutil.copy2(path, to)
    except OSError as error:
        several = error.args[0] if isinstance(error, shutil.Error) else None
        file, _, why = several[0] if several else (path, to, error)
        raise UsageError(
            f"{file}: can't be copied ({why}). Move it elsewhere, or name its folder with --share."
        ) from None


def _within(root: Path, shared: Path) -> Path:
    """A shared folder as a path in `root`, its own links not followed. Raises UsageError."""
    path = Path(os.path.abspath(shared))  # noqa: PTH100 - keeps symbolic links
    folder = path if path.is_relative_to(root) else path.resolve()
    if not folder.is_relative_to(root) or not folder.is_dir():
        raise UsageError(f"--share {shared}: no folder within {root}, so there is none to link.")
    return folder


def _walk(root: Path, links: set[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Folders with all their names, but for what is left out; links are names, never entered."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [n for n in folders if n not in LEFT_OUT and here / n not in links]
        yield here, [*folders, *names]


def _outward(root: Path, links: set[Path]) -> Iterator[Path]:
    """Links to something that is there and lies outside; those to a folder above `root` are not."""
    for here, names in _walk(root, links):
        for path in (here / n for n in names):
            if path.is_symlink() and path.exists():
                target = path.resolve()
                if not target.is_relative_to(root) and not root.is_relative_to(target):
                    yield path


def _sized(root: Path, links: set[Path], outward: set[Path]) -> Iterator[tuple[Path, int]]:
    """Every file that is copied, and its bytes; what lies behind an outward link counts as it."""
    for here, names in _walk(root, links):
        for path in (here / n for n in names):
            if path in outward:
                yield from ((path, size) for size in _sizes_behind(path))
            elif path.is_symlink() or not path.is_dir():
                yield path, path.lstat().st_size


def _sizes_behind(link: Path) -> Iterator[int]:
    if not link.is_dir():
        yield link.stat().st_size
        return
    for folder, _, names in os.walk(link):
        yield from ((Path(folder) / n).lstat().st_size for n in names)


def _point_links_inside(root: Path, to: Path) -> None:
    """Absolute links into the original lead into the copy: what is written there stays here."""
    for folder, folders, names in os.walk(to):
        for name in (*folders, *names):
            path = Path(folder) / name
            if path.is_symlink():
                target = path.readlink()
                inside = target.is_absolute() and target.is_relative_to(root)
                copy = to / target.relative_to(root) if inside else None
                if copy is not None and copy.exists() and copy.resolve() != path:
                    path.unlink()
                    path.symlink_to(copy)
