"""What names hold, as far as the text of a file tells; and options, whose values names hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from loaderdoctor.advice.call_edit import argument
from loaderdoctor.advice.source import Source, called_name
from loaderdoctor.settings import Value

# `-j 9`, `data.num_workers=9`, a word at a place of its own, `WORKERS=9 python train.py`.
Kind = Literal["flag", "key", "place", "environment"]
# What a text is taken for: a number; True and False by these words, and numbers; or any text, which
# is true unless it is empty.
Reads = Literal["number", "words", "text"]
_MAX_CHOICES = 10_000  # a range of more is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a value is given on the command line."""

    kind: Kind
    names: tuple[str, ...] = ()  # every spelling, as `-j` and `--workers`
    switch: bool = False  # given or not, without a value
    negated: str | None = None  # the spelling that switches it off: `--no-pin-memory`
    off: bool = False  # giving the switch sets False
    before_command: bool = False  # belongs to the main parser of one with subcommands
    place: int = 0  # of sys.argv
    reads: Reads = "words"
    choices: tuple[str, ...] | None = None  # None: any

    def spelled(self, value: Value) -> str | None:
        """The value as this option is given it; None where that would be taken for another."""
        text = str(value)
        if isinstance(value, bool) and self.reads != "words":
            if self.reads == "text" and not value:
                return None
            text = str(int(value))
        return text if self.choices is None or text in self.choices else None


def _reads(kind: ast.expr | None) -> Reads | None:
    """By argparse's `type=`; None where the text may become anything."""
    if kind is None:
        return "text"
    said = ast.unparse(kind)
    name = said.rpartition(".")[2]
    if isinstance(kind, ast.Lambda):
        return "words" if "true" in said.lower() else None
    if name in ("bool", "str"):
        return "text"  # bool("False") is true
    if "bool" in name.lower() or name in ("eval", "literal_eval"):
        return "words"
    return "number" if "int" in name.lower() or name == "float" else None


def _choices(node: ast.expr) -> tuple[str, ...] | None:
    """What may be given, by argparse's `choices=`; None where that is computed."""
    try:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "range" and not node.keywords:
            numbers = range(*map(ast.literal_eval, node.args))
            return tuple(map(str, numbers)) if len(numbers) <= _MAX_CHOICES else None
        return tuple(map(str, ast.literal_eval(node)))
    except (TypeError, ValueError):
        return None


def declared(call: ast.Call, flags: tuple[str, ...], *, before_command: bool) -> Option | None:
    """Of argparse's `add_argument`.

    None where it takes something else than one value, or makes something else of it.
    """
    given = {k.arg: k.value for k in call.keywords}
    action = given.get("action")
    said = text_of(action) or (ast.unparse(action) if action is not None else "store")
    both = said.endswith("BooleanOptionalAction")
    kind = _reads(given.get("type"))
    choices = _choices(given["choices"]) if "choices" in given else None
    if kind is None or (choices is None and "choices" in given) or "nargs" in given:
        return None
    if not both and said not in ("store", "store_true", "store_false"):
        return None
    long = next((f for f in flags if f.startswith("--")), None)
    return Option(
        kind="flag",
        names=flags,
        switch=both or said in ("store_true", "store_false"),
        negated=f"--no-{long[2:]}" if both and long else None,
        off=said == "store_false",
        before_command=before_command,
        reads=kind,
        choices=choices,
    )


# By click's `type=`, else the type of its default.
OF_CLICK: Mapping[str, Reads] = {
    "int": "number", "float": "number", "bool": "words", "str": "text", "nonetype": "text",
}  # fmt: skip


def clicked(flags: Sequence[str], *, is_flag: bool, reads: Reads = "words") -> Option | None:
    """Of click and typer, whose switches are spelled `--pin/--no-pin`."""
    on: list[str] = []
    negated = None
    for flag in flags:
        first, slash, second = flag.partition("/")
        on.append(first.strip())
        if slash:
            negated = second.strip()
    if not on:
        return None
    switch = is_flag or negated is not None
    return Option(kind="flag", names=tuple(on), switch=switch, negated=negated, reads=reads)


def dest_of(flags: Sequence[str]) -> str:
    """The name that argparse and click give an option: the first long one's, else the first's."""
    long = next((f for f in flags if f.startswith("--")), flags[0] if flags else "")
    return long.lstrip("-").replace("-", "_")


def is_parsed(call: ast.Call) -> bool:
    """`parser.parse_args()`, `ArgumentParser().parse_args(argv)`; not `parse_args([])`."""
    words = argument(call, "args", ("args",))
    typed = words is None or isinstance(words, ast.Name) or "argv" in ast.unparse(words)
    named = called_name(call) in ("parse_args", "parse_known_args", "parse_intermixed_args")
    return named and (typed or (isinstance(words, ast.Constant) and words.value is None))


def text_of(node: ast.expr | None) -> str | None:
    """The text that a literal holds; None where it is none."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def constant(call: ast.Call, name: str) -> object:
    """The literal that a call is given by this keyword; None where it is none."""
    node = next((k.value for k in call.keywords if k.arg == name), None)
    return node.value if isinstance(node, ast.Constant) else None


def path_of(node: ast.expr) -> tuple[str, ...] | None:
    """`args.data["workers"]` as its names; None where it is no such path."""
    names: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript) and (key := text_of(node.slice)) is not None:
            names.append(key)
            node = node.value
        elif isinstance(node, ast.Call) and called_name(node) == "vars" and len(node.args) == 1:
            node = node.args[0]
        elif isinstance(node, ast.Name):
            return (*[node.id], *reversed(names))
        else:
            return None


def values_of(scope: ast.AST, name: str, *, deep: bool = False) -> Iterator[ast.expr]:
    """What the scope's own code gives the name; with `deep` that of its functions too.

    A constant None where that is no expression: a loop's variable, `del`, `nonlocal`, and others.
    """
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
        if inner and not deep:
            if any(map(_says_outer(name), ast.walk(node))):
                yield ast.Constant(None)
            continue
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _bound(target, node.value, name)
            todo.append(node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                yield from _bound(node.target, node.value, name)
                todo.append(node.value)
        elif isinstance(node, ast.comprehension):  # its variables are its own
            todo += [node.iter, *node.ifs]
        else:
            if _says_outer(name)(node) or _is_set(node, name):
                yield ast.Constant(None)
            todo += ast.iter_child_nodes(node)


def _says_outer(name: str) -> Callable[[ast.AST], bool]:
    """Whether a node is `global NAME` or `nonlocal NAME`."""
    return lambda node: isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names


def _is_set(node: ast.AST, name: str) -> bool:
    """Whether it is the name as a target, or deleted."""
    place = isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load)
    return place and ast.unparse(node) == name


def _bound(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        same = len(parts) == len(target.elts)
        for i, part in enumerate(target.elts):
            # What is unpacked of something else has no value that could be read.
            each = parts[i] if same else value if _parses_parts(value) else ast.Constant(None)
            yield from _bound(part, each, name)
    elif isinstance(target, ast.Starred):
        yield from _bound(target.value, ast.Constant(None), name)
    elif ast.unparse(target) == name:
        yield value


def key_of(source: Source, held: ast.Name, key: str) -> ast.expr | None:
    """What the one dict that the name holds has under this key; None where more may change it.

    That is any use of the name but those which are known to leave the key as it is: under another
    name, in another function or in a container it may be changed where nothing is seen of it.
    """
    scope = source.function(held) or source.tree
    values = list(values_of(scope, held.id))
    uses = [x for x in ast.walk(scope) if isinstance(x, ast.Name) and x.id == held.id]
    if len(values) != 1 or not all(_leaves(source, x, key) for x in uses):
        return None
    made = values[0]
    pairs: list[tuple[str | None, ast.expr]] = []
    if isinstance(made, ast.Call) and called_name(made) == "dict" and not made.args:
        pairs = [(k.arg, k.value) for k in made.keywords]
    elif isinstance(made, ast.Dict):
        pairs = [(text_of(k), value) for k, value in zip(made.keys, made.values, strict=True)]
    if any(name is None for name, _ in pairs):
        return None
    return next((value for name, value in pairs if name == key), None)


def _leaves(source: Source, held: ast.Name, key: str) -> bool:
    """Whether this use of a name of a dict surely leaves what the dict has under the key."""
    use = source.parents.get(held)
    if not isinstance(held.ctx, ast.Load):  # made here, under no other name as well
        alone = isinstance(use, ast.AnnAssign) or (
            isinstance(use, ast.Assign) and use.targets == [held]
        )
        return alone and isinstance(held.ctx, ast.Store)
    if isinstance(use, ast.keyword):
        return use.arg is None
    if isinstance(use, ast.Subscript):
        return isinstance(use.ctx, ast.Load) or text_of(use.slice) not in (key, None)
    call = source.parents.get(use) if isinstance(use, ast.Attribute) else None
    if not isinstance(use, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not use:
        return isinstance(use, (ast.Compare, ast.FormattedValue))
    if use.attr in ("update", "setdefault", "pop"):
        given = call.args if use.attr == "update" else call.args[:1]
        return not {key, None} & {*[k.arg for k in call.keywords], *map(text_of, given)}
    return use.attr in ("get", "items", "keys", "values", "copy")


def given_of(source: Source, call: ast.Call, key: str) -> ast.expr | None:
    """What the call gives for this parameter by its name, or by one of its `**kwargs`."""
    found = [k.value for k in call.keywords if k.arg == key]
    unpacked = [k.value for k in call.keywords if k.arg is None]
    held = (key_of(source, x, key) for x in unpacked if isinstance(x, ast.Name))
    found += [x for x in held if x is not None]
    return found[0] if len(found) == 1 else None


def part_returned(sources: Iterable[Source], source: Source, root: ast.Name) -> ast.expr | None:
    """What `args, text = parse()` puts into the name, where `parse` returns `args, text` once."""
    scope = source.function(root) or source.tree
    for node in ast.walk(scope):
        parts = node.targets[0] if isinstance(node, ast.Assign) else None
        call = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(parts, ast.Tuple) or not isinstance(call, ast.Call):
            continue
        names = [ast.unparse(x) for x in parts.elts]
        made = [
            x
            for s in sources
            for x in ast.walk(s.tree)
            if isinstance(x, ast.FunctionDef) and x.name == called_name(call)
        ]
        if names.count(root.id) != 1 or len(made) != 1:
            continue
        returned = [x.value for x in ast.walk(made[0]) if isinstance(x, ast.Return)]
        whole = returned[0] if len(returned) == 1 else None
        if not isinstance(whole, ast.Tuple) or len(whole.elts) != len(names):
            return None
        part = whole.elts[names.index(root.id)]
        values = list(values_of(made[0], part.id)) if isinstance(part, ast.Name) else [part]
        return values[0] if len(values) == 1 else None
    return None


def of_self(source: Source, name: str) -> ast.expr | None:
    """What a class assigns to `self.NAME`."""
    values = list(values_of(source.tree, f"self.{name}", deep=True))
    return values[0] if len(values) == 1 else None


def binds(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether the function's own code, or one inside it, gives the name a value."""
    return any(True for _ in values_of(function, name))


def assigns_to(sources: Iterable[Source], path: tuple[str, ...], *, one_rank: bool) -> bool:
    """Whether the files assign to what the path names, whatever they call what holds it.

    `args.workers = min(args.workers, 4)`: what was parsed is not what is read then. With
    `one_rank`, what is done only where there are several (`if args.distributed:`) is not done.
    """
    key = _key(path)
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, (ast.Attribute, ast.Subscript)):
                continue
            other = _key(path_of(node) or ()) if isinstance(node.ctx, ast.Store) else ()
            shorter = min(len(key), len(other))
            if not shorter or key[-shorter:] != other[-shorter:]:
                continue
            if not (one_rank and _of_several_ranks(source, node)):
                return True
    return False


def sets_variable(sources: Iterable[Source], name: str) -> bool:
    """Whether the files set this variable of the environment themselves."""
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and text_of(node.slice) == name
        and ast.unparse(node.value).endswith("environ")
        for source in sources
        for node in ast.walk(source.tree)
    )


def _of_several_ranks(source: Source, node: ast.AST) -> bool:
    """Whether it stands in the body of `if args.distributed:` or of `if world_size > 1:`."""
    parent = source.parents.get(node)
    while parent is not None:
        if isinstance(parent, ast.If) and node in parent.body:
            tests = parent.test.values if isinstance(parent.test, ast.BoolOp) else [parent.test]
            every = not isinstance(parent.test, ast.BoolOp) or isinstance(parent.test.op, ast.And)
            if any(map(_says_several, tests)) if every else all(map(_says_several, tests)):
                return True
        node, parent = parent, source.parents.get(parent)
    return False


def _says_several(test: ast.expr) -> bool:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Gt):
        path, limit = path_of(test.left), test.comparators[0]
        return path is not None and path[-1] == "world_size" and ast.unparse(limit) == "1"
    path = path_of(test)
    return path is not None and path[-1] == "distributed"


def _key(path: tuple[str, ...]) -> tuple[str, ...]:
    """The path behind what holds all options: `args.workers`, `self.args.workers`."""
    return path[2:] if path[:1] == ("self",) else path[1:]


def default_of(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """What the parameter is without being given; None where it must be."""
    given = [*function.args.posonlyargs, *function.args.args]
    for parameter, default in zip(reversed(given), reversed(function.args.defaults), strict=False):
        if parameter.arg == name:
            return default
    for parameter, other in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if parameter.arg == name:
            return other
    return None


def _parses_parts(value: ast.expr) -> bool:
    """`args, unknown = parser.parse_known_args()`, and what fills several dataclasses."""
    names = ("parse_known_args", "parse_args_into_dataclasses")
    return isinstance(value, ast.Call) and called_name(value) in names
