"""Finds and describes recipes: reference training loops that also run as plain scripts.

A recipe is a folder with a script and a `recipe.json` (see docs/recipes.md). Reading one runs
none of its code. In a checkout recipes lie in `recipes/`, in a wheel in `loaderdoctor/_recipes`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loaderdoctor.errors import UsageError
from loaderdoctor.settings import AXES, AXES_BY_NAME

DESCRIPTION = "recipe.json"
_PACKAGE = Path(__file__).parent
Options = Mapping[str, Mapping[str, tuple[str, ...]]]
HOMES = (_PACKAGE / "_recipes", _PACKAGE.parent / "recipes")


class _Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    summary: str
    script: str
    description: str = ""
    args: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = tuple(axis.name for axis in AXES)
    requires: tuple[str, ...] = ()
    extra: str | None = None
    # axis -> value -> words for the script, of axes that only a script can set
    options: dict[str, dict[str, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    name: str
    summary: str
    description: str
    folder: Path
    script: Path
    args: tuple[str, ...]  # given to the script when loaderdoctor runs it, before the user's own
    sweeps: tuple[str, ...]  # axes that mean something for it
    requires: tuple[str, ...]  # modules it imports besides torch
    extra: str | None  # the extra of loaderdoctor that installs them
    options: Options  # words for the script, by axis and value, where only a script can set it

    @property
    def missing(self) -> tuple[str, ...]:
        """Required modules that are not installed; none is imported to find out."""
        return tuple(name for name in self.requires if not installed(name))

    def check(self) -> Recipe:
        """Itself, if it can run here. Raises UsageError that names what to install."""
        if self.missing:
            how = f"pip install 'loaderdoctor[{self.extra}]'" if self.extra else "install them"
            raise UsageError(f"recipe {self.name} needs {', '.join(self.missing)}: {how}.")
        return self


def installed(module: str) -> bool:
    """Whether it could be imported; only packages that it lies in are."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def home() -> Path:
    """The folder with the recipes that come with the program. Raises UsageError."""
    for folder in HOMES:
        if any(folder.glob(f"*/{DESCRIPTION}")):
            return folder
    raise UsageError(f"no recipes in {' or '.join(map(str, HOMES))}: the installation is damaged.")


def all_recipes() -> tuple[Recipe, ...]:
    """Those that come with the program, by name."""
    found = [read(path.parent) for path in home().glob(f"*/{DESCRIPTION}")]
    return tuple(sorted(found, key=lambda recipe: recipe.name))


def find(name_or_folder: str) -> Recipe:
    """A recipe by its name, or the one in a folder of the user's own. Raises UsageError."""
    known = {recipe.name: recipe for recipe in all_recipes()}
    if name_or_folder in known:
        return known[name_or_folder]
    folder = Path(name_or_folder).expanduser()
    if folder.name == DESCRIPTION:
        folder = folder.parent
    if folder.is_dir():
        return read(folder)
    raise UsageError(
        f"no recipe {name_or_folder!r}. There are: {', '.join(known)}; or give a folder with a "
        f"{DESCRIPTION}."
    )


def read(folder: Path) -> Recipe:
    """The recipe in a folder. Raises UsageError that names the file and what is wrong in it."""
    path = folder / DESCRIPTION
    try:
        wire = msgspec.json.decode(path.read_bytes(), type=_Wire)
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror}).") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: {error}. See docs/recipes.md for what it holds.") from error
    script = (folder / wire.script).resolve()
    if not script.is_file():
        raise UsageError(f"{path}: its script {wire.script} is not in {folder}.")
    unknown = sorted(set(wire.sweeps) - {axis.name for axis in AXES})
    if unknown:
        names = ", ".join(axis.name for axis in AXES)
        raise UsageError(f"{path}: sweeps names {', '.join(unknown)}; the axes are {names}.")
    return Recipe(
        name=wire.name,
        summary=wire.summary,
        description=wire.description,
        folder=folder.resolve(),
        script=script,
        args=wire.args,
        sweeps=wire.sweeps,
        requires=wire.requires,
        extra=wire.extra,
        options=_options(path, wire.options),
    )


def _options(path: Path, written: dict[str, dict[str, tuple[str, ...]]]) -> Options:
    """Checked: each axis is one that a script sets, each value one that it has."""
    for name, words in written.items():
        axis = AXES_BY_NAME.get(name)
        if axis is None or axis.where != "script":
            names = ", ".join(axis.name for axis in AXES if axis.where == "script")
            raise UsageError(f"{path}: options names {name}; those that a script sets are {names}.")
        known = axis.choices or ("true", "false")
        if wrong := sorted(set(words) - set(known)):
            raise UsageError(
                f"{path}: options of {name} name {', '.join(wrong)}; its values are "
                f"{', '.join(known)}."
            )
    return written
