"""The user's own DataLoader line over another dataset."""

from __future__ import annotations

import ast
import textwrap

from loaderdoctor.advice.call_edit import parsed_call, span_of
from loaderdoctor.advice.code import CodeEdit, loader_call
from loaderdoctor.instrument.wire.records import LoaderRecord


def dataset_name(loader: LoaderRecord | None) -> str:
    """What the script calls its dataset; `dataset` where the line doesn't say."""
    name = _written(loader)
    return name if name is not None and _is_name(name) else "dataset"


def dataset_source(loader: LoaderRecord | None) -> str:
    """The dataset as the line has it, be it a call that makes it; `dataset` where it has none.

    To be written once: what makes a dataset twice takes twice its memory.
    """
    return _written(loader) or "dataset"


def has_name(loader: LoaderRecord | None) -> bool:
    """Whether the script calls its dataset something, or the line does not tell."""
    written = _written(loader)
    return written is None or _is_name(written)


def _written(loader: LoaderRecord | None) -> str | None:
    found = _dataset_argument(loader)
    return found[0][slice(*found[1])] if found is not None else None


def _is_name(source: str) -> bool:
    return isinstance(ast.parse(f"({source})", mode="eval").body, (ast.Name, ast.Attribute))


def with_dataset(
    loader: LoaderRecord | None, dataset: str, *, collate: str | None = None
) -> CodeEdit | None:
    """The line that builds the loader over `dataset` (source text), and that collate function.

    None where the line isn't known, or can't be changed safely.
    """
    found = _dataset_argument(loader)
    if found is None or loader is None:
        return None
    source, (start, end) = found
    call_start, call_end = loader_call(source, loader.call_index)  # type: ignore[misc]  # found
    keywords = {k.arg for k in parsed_call(source[call_start:call_end]).keywords}  # type: ignore[union-attr]
    after = source[:start] + dataset + source[end:]
    if collate is not None:
        if "collate_fn" in keywords:
            return None
        if None in keywords and loader.collate != "default_collate":
            return None  # what is unpacked holds one already
        close = call_end + len(after) - len(source) - 1
        head = after[:close].rstrip()
        comma = "" if head.endswith(("(", ",")) else ","
        gap = after[len(head) : close]
        added = f" collate_fn={collate}" if not gap else f"{gap}    collate_fn={collate},"
        after = head + comma + added + gap + after[close:]
    if not _holds(after, loader.call_index, dataset, collate):
        return None
    return CodeEdit(before=source, after=after)


def _holds(source: str, index: int, dataset: str, collate: str | None) -> bool:
    """Whether the line's call reads as it was meant to: a comment may have swallowed a part."""
    span = loader_call(source, index)
    call = parsed_call(source[span[0] : span[1]]) if span is not None else None
    if call is None:
        return False
    named = {k.arg: ast.unparse(k.value) for k in call.keywords}
    first = named.get("dataset") or (ast.unparse(call.args[0]) if call.args else None)
    wanted = ast.unparse(ast.parse(dataset, mode="eval").body)
    return first == wanted and (collate is None or named.get("collate_fn") == collate)


def _dataset_argument(loader: LoaderRecord | None) -> tuple[str, tuple[int, int]] | None:
    """The line, and where in it the dataset stands."""
    if loader is None or loader.code is None or loader.library is not None:
        return None
    source = textwrap.dedent(loader.code).strip("\n")
    span = loader_call(source, loader.call_index)
    call = parsed_call(source[span[0] : span[1]]) if span is not None else None
    if span is None or call is None:
        return None
    named = next((k.value for k in call.keywords if k.arg == "dataset"), None)
    node = named or (call.args[0] if call.args else None)
    if node is None or isinstance(node, ast.Starred):
        return None
    start, end = span_of(source[span[0] : span[1]], node)
    return source, (span[0] + start, span[0] + end)
