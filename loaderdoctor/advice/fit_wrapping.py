"""What is put around a loader's dataset, or the loader, where it is built."""

from __future__ import annotations

from loaderdoctor.advice import loop_snippets
from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.define import define
from loaderdoctor.advice.patch import Editor
from loaderdoctor.advice.places import Built
from loaderdoctor.advice.worked import CACHED, Wrapping, over_call, rows, sliced
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings


def define_wrapping(editor: Editor, made: Built, loader: LoaderRecord, settings: Settings) -> None:
    """The classes that `wrapped_call` reads, above the call. Raises CannotEdit."""
    wrapping = _wrapping(loader, settings)
    codes = [wrapping.code] if wrapping is not None else []
    codes += [loop_snippets.THREADS] if settings.threads else []
    if codes:
        define(editor, made.source, made.call, "\n".join(codes))


def wrapped_call(made: Built, loader: LoaderRecord, settings: Settings, text: str) -> str:
    """The call `text` with what the settings ask for around its dataset, and around it.

    Raises CannotEdit.
    """
    wrapping = _wrapping(loader, settings)
    if wrapping is not None:
        if made.dataset is None:
            raise CannotEdit("its dataset is not to be read")
        edit = over_call(loader, text, wrapping.over(made.source.code(made.dataset)), wrapping)
        if edit is None:
            raise CannotEdit("the call can't be changed safely")
        text = edit.after
    if settings.threads:
        if loader.batch_size is None:
            raise CannotEdit("what makes its batches is not known")
        text = f"Threads({text}, {settings.threads})"
    return text


def _wrapping(loader: LoaderRecord, settings: Settings) -> Wrapping | None:
    if settings.cache and settings.batched:
        return sliced(loader)
    if settings.cache:
        return CACHED
    if not settings.batched:
        return None
    found = rows(loader)
    if found is None:
        raise CannotEdit("which arrays its samples are rows of is not known")
    return found
