"""Changes keyword arguments of one call in source text, leaving the rest as it was written.

Calls are found by tokens, so that a fragment (`for x in DataLoader(ds):`, a dict entry) is
no obstacle; the call itself is parsed, and parsed again after the change.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping, Sequence

from loaderdoctor.settings import Value

_SILENT = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
_OPEN, _CLOSE = "([{", ")]}"


class Expression(str):
    """A value as source text: `one_thread`, in place of the text "one_thread"."""

    __slots__ = ()


# Calls that give the same once more, and do nothing.
_PURE = frozenset({
    "int", "min", "max", "len", "os.cpu_count", "os.sched_getaffinity",
    "multiprocessing.cpu_count", "mp.cpu_count", "torch.cuda.device_count",
})  # fmt: skip


class CannotEdit(Exception):  # noqa: N818  # a reason, shown to the user as a note
    """The call can't be changed safely; the message says why."""


def argument(call: ast.Call | None, name: str, parameters: Sequence[str]) -> ast.expr | None:
    """As it is written, by name or at its place among `parameters`; None where it is not seen."""
    if call is None:
        return None
    named = next((k.value for k in call.keywords if k.arg == name), None)
    if named is not None or name not in parameters:
        return named
    upto = call.args[: parameters.index(name) + 1]
    starred = any(isinstance(x, ast.Starred) for x in upto)
    return upto[-1] if len(upto) > parameters.index(name) and not starred else None


def where_workers(own: ast.expr | None, code: str, arguments: dict[str, Value]) -> dict[str, Value]:
    """What torch takes of workers alone, by `own`, which counts them in this code.

    Raises CannotEdit where counting once more may give another number, or do something.
    """
    keeps, ahead = arguments.get("persistent_workers"), arguments.get("prefetch_factor")
    if own is None or isinstance(own, ast.Constant) or "num_workers" in arguments:
        return arguments
    if not keeps and ahead is None:
        return arguments
    if not all(is_pure(x) for x in ast.walk(own)):
        raise CannotEdit("its workers are counted by a call that may give another number again")
    n = ast.get_source_segment(code, own) or ast.unparse(own)
    n = n if isinstance(own, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({n})"
    given = dict(arguments)
    if keeps:
        given["persistent_workers"] = Expression(f"{n} > 0")
    if ahead is not None:
        given["prefetch_factor"] = Expression(f"{ahead} if {n} else None")
    return given


def is_pure(node: ast.AST) -> bool:
    """Whether it gives the same once more; of calls those of numbers, sizes and dicts."""
    if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
        return False
    if not isinstance(node, ast.Call):
        return True
    of_dict = isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args
    return bool(of_dict) or ast.unparse(node.func) in _PURE  # a queue's get() takes no key


def calls(source: str) -> list[tuple[str, int, int]]:
    """Every complete call `name(…)` as (last part of the name, start, end), by start.

    Offsets are characters; the span runs from the name to the closing parenthesis. `def` and
    `class` lines are none.
    """
    tokens = _tokens(source)
    found: list[tuple[str, int, int]] = []
    for i in range(len(tokens) - 1):
        (kind, text, start, _), following = tokens[i], tokens[i + 1]
        if kind != tokenize.NAME or following[1] != "(":
            continue
        if i and tokens[i - 1][1] in ("def", "class"):
            continue
        end = _closing(tokens, i + 1)
        if end is not None:
            found.append((text, start, end))
    return found


def parsed_call(text: str) -> ast.Call | None:
    """The call as a tree; None where the text is none."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return None
    return tree.body if isinstance(tree.body, ast.Call) else None


def with_arguments(
    text: str,
    arguments: Mapping[str, Value],
    *,
    parameters: Sequence[str],
    defaults: Mapping[str, Value],
) -> str:
    """The call `text` with these keyword arguments.

    `parameters` names the positional parameters in order. An argument that isn't there is not added
    where its value is the default. Raises CannotEdit with the reason.
    """
    node = parsed_call(text)
    if node is None:
        raise CannotEdit("the call could not be parsed")
    keywords = {k.arg: k.value for k in node.keywords if k.arg is not None}
    unpacked = any(k.arg is None for k in node.keywords)
    starred = any(isinstance(a, ast.Starred) for a in node.args)
    edits: list[tuple[int, int, str]] = []
    added: list[str] = []
    over: dict[str, Value] = {}  # over what is unpacked, which may hold the same argument
    for name, value in arguments.items():
        present = keywords.get(name)
        if present is None and name in parameters:
            at = parameters.index(name)
            if starred:
                raise CannotEdit(f"the call unpacks *arguments, which may hold {name}")
            present = node.args[at] if at < len(node.args) else None
        if present is not None:
            edits.append((*span_of(text, present), literal(value)))
        elif unpacked:
            over[name] = value
        elif value != defaults.get(name):
            added.append(f"{name}={literal(value)}")
    edits += _insertions(text, node, added) + _overriding(text, node, over)
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    _check(text, {k: v for k, v in arguments.items() if k in keywords or k in _names(added)}, over)
    return text


def _names(added: Sequence[str]) -> set[str]:
    return {x.partition("=")[0] for x in added}


def _overriding(text: str, node: ast.Call, over: Mapping[str, Value]) -> list[tuple[int, int, str]]:
    """`**{**options, "num_workers": 6}`: a keyword next to `**options` may be there twice."""
    if not over:
        return []
    unpacked = [k.value for k in node.keywords if k.arg is None]
    if len(unpacked) > 1:
        raise CannotEdit("the call unpacks several **arguments")
    start, end = span_of(text, unpacked[0])
    values = ", ".join(f'"{name}": {literal(value)}' for name, value in over.items())
    return [(start, end, f"{{**{text[start:end]}, {values}}}")]


def _check(text: str, wanted: Mapping[str, Value], over: Mapping[str, Value]) -> None:
    """Raises CannotEdit unless the edited call parses and holds the keywords wanted."""
    node = parsed_call(text)
    held = {k.arg: k.value for k in node.keywords} if node is not None else {}
    merged = held.get(None)
    if over and isinstance(merged, ast.Dict):
        names = [k.value if isinstance(k, ast.Constant) else None for k in merged.keys]
        held |= {k: v for k, v in zip(names, merged.values, strict=True) if isinstance(k, str)}
    for name, value in {**wanted, **over}.items():
        got = held.get(name)
        if isinstance(value, Expression):
            asked = ast.parse(value, mode="eval").body
            same = got is not None and ast.dump(got) == ast.dump(asked)
        else:
            same = isinstance(got, ast.Constant) and got.value == value
        if not same:
            raise CannotEdit("the call could not be changed safely")
    if node is None:
        raise CannotEdit("the call could not be changed safely")


def _insertions(text: str, node: ast.Call, added: Sequence[str]) -> list[tuple[int, int, str]]:
    """Where new arguments go: behind the last one, on their own lines where those have them."""
    if not added:
        return []
    tokens = [t for t in _tokens(text) if t[0] not in _SILENT and t[0] != tokenize.ENDMARKER]
    _, last, _, last_end = tokens[-2]
    close = tokens[-1][2]
    if "\n" in text[last_end:close] and last != "(":
        arguments: list[ast.expr] = [*node.args, *(k.value for k in node.keywords)]
        line = _lines(text)[max(a.lineno for a in arguments) - 1]
        indent = line[: len(line) - len(line.lstrip())] or "    "
        at = text.rfind("\n", 0, close) + 1
        comma = [] if last == "," else [(last_end, last_end, ",")]
        return [*comma, (at, at, "".join(f"{indent}{x},\n" for x in added))]
    joined = ", ".join(added)
    before = "" if last == "(" else " " if last == "," else ", "
    return [(last_end, last_end, before + joined)]


def span_of(text: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a part of the call's tree stands in its text."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (
        _offset(text, node.lineno, node.col_offset),
        _offset(text, node.end_lineno, node.end_col_offset),
    )


def _offset(text: str, line: int, column_bytes: int) -> int:
    """Character offset of a place in the tree, whose columns count UTF-8 bytes."""
    lines = _lines(text)
    within = lines[line - 1].encode()[:column_bytes].decode()
    return sum(map(len, lines[: line - 1])) + len(within)


def _lines(text: str) -> list[str]:
    """Lines as the parser counts them, ends kept; str.splitlines also breaks at form feeds."""
    return [f"{line}\n" for line in text.split("\n")]


def _tokens(source: str) -> list[tuple[int, str, int, int]]:
    """(kind, text, start, end) in characters, as far as the source can be read."""
    starts = [0]
    for line in _lines(source):
        starts.append(starts[-1] + len(line))
    found: list[tuple[int, str, int, int]] = []
    try:
        for t in tokenize.generate_tokens(io.StringIO(source).readline):
            start = starts[min(t.start[0] - 1, len(starts) - 1)] + t.start[1]
            end = starts[min(t.end[0] - 1, len(starts) - 1)] + t.end[1]
            found.append((t.type, t.string, start, end))
    except (tokenize.TokenError, SyntaxError):
        pass  # a fragment: what came before its end is what there is
    return found


def _closing(tokens: Sequence[tuple[int, str, int, int]], at: int) -> int | None:
    """End of the bracket opened at `tokens[at]`; None where it never closes."""
    depth = 0
    for kind, text, _, end in tokens[at:]:
        if kind == tokenize.OP and text in _OPEN:
            depth += 1
        elif kind == tokenize.OP and text in _CLOSE:
            depth -= 1
            if depth == 0:
                return end
    return None


def literal(value: Value) -> str:
    """A setting's value as Python source."""
    if isinstance(value, Expression):
        return str(value)
    return f'"{value}"' if isinstance(value, str) else repr(value)
