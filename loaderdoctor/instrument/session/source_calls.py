"""What a line of source calls at one instruction of it: `loss.item`, `frame.iloc[]`.

C code has no frame: of `loss.item()` the stack shows only the line. Since Python 3.11 code objects
know which part of the source each instruction is from; before that nothing is told.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from itertools import islice
from types import CodeType
from typing import Final

import torch

MAX_CHARS: Final = 60
MAX_LINE_CHARS: Final = 160
MAX_LINES: Final = 30  # of one expression

# Methods of tensors that end torch's own work: they read the values.
_READS: Final = frozenset(("item", "tolist", "numpy", "cpu", "__array__"))
_ROOTS: Final = ("torch", "F", "nn")
_NOT_OPERATORS: Final = ("torch.save", "torch.load", "torch.cuda.synchronize")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call in the source, or what stands in for one."""

    name: str | None  # "torch.save", "frame.iloc[]"; None: `+` and its like
    operator: bool  # by its name or kind one of torch's, if its arguments are tensors


def called_at(code: CodeType, instruction: int) -> Call | None:
    """What `code` calls at this byte of its instructions (`f_lasti`); None where nothing."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return None
    at = next(islice(positions(), instruction // 2, None), None)
    if at is None or None in at:
        return None
    text = _segment(code.co_filename, *at)
    if text is None:
        return None
    try:
        node = ast.parse(f"({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # a statement: `for`, `with`
    return _call_of(node)


def source_line(file: str, line: int) -> str | None:
    """The line without its indentation; None where there is no source."""
    text = linecache.getline(file, line).strip()
    return text[:MAX_LINE_CHARS] or None


def _segment(file: str, line: int, end_line: int, column: int, end_column: int) -> str | None:
    """The source between two places; columns count bytes of UTF-8."""
    if not 0 <= end_line - line < MAX_LINES:
        return None
    lines = [linecache.getline(file, n).encode() for n in range(line, end_line + 1)]
    if not lines[0]:
        return None
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode(errors="replace")


def _call_of(node: ast.expr) -> Call | None:
    if isinstance(node, ast.Await):
        node = node.value
    if isinstance(node, ast.Call):
        name = _dotted(node.func)
        return Call(name=name, operator=_may_be_operator(name))
    if isinstance(node, ast.Subscript):
        return Call(name=f"{_dotted(node.value)}[]"[:MAX_CHARS], operator=True)
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare):
        return Call(name=None, operator=True)
    if isinstance(node, ast.Attribute):  # a property
        return Call(name=_dotted(node), operator=False)
    return None


def _dotted(node: ast.expr) -> str:
    """`loss.item` of that; of what is no chain of names only its end: `….item`."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "…")
    return ".".join(reversed(names))[:MAX_CHARS]


def _may_be_operator(name: str) -> bool:
    root, _, _ = name.partition(".")
    method = name.rpartition(".")[2]
    if name in _NOT_OPERATORS or "." not in name:
        return False
    if root in _ROOTS:
        return True
    return method not in _READS and hasattr(torch.Tensor, method)
