"""Where an argument's value comes from: an option of the script's command line, if it does.

Known are argparse (parents and subparsers too), click, typer, absl's flags, simple-parsing,
transformers' HfArgumentParser, hydra and OmegaConf, `KEY=VALUE` words, a place in sys.argv, and
the environment. Anything computed from an option is none: its value would be another one.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from loaderdoctor.advice.assigned import (
    OF_CLICK,
    Option,
    assigns_to,
    binds,
    clicked,
    constant,
    declared,
    default_of,
    dest_of,
    given_of,
    is_parsed,
    of_self,
    part_returned,
    path_of,
    sets_variable,
    text_of,
    values_of,
)
from loaderdoctor.advice.source import Source, called_name

# An alias of an alias of an alias is followed so far.
MAX_DEPTH = 8
Places = Sequence[tuple[str, int]]  # files and lines
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
_GETENV = ("os.environ.get", "environ.get", "os.getenv", "getenv")


def option_of(
    sources: Sequence[Source],
    source: Source,
    node: ast.expr,
    *,
    one_rank: bool = False,
    callers: Places = (),
) -> Option | None:
    """The option whose value, unchanged, this expression is; None where there is none.

    `one_rank`: the script ran as one, so what it does for several was not done. `callers`: calls
    through which the expression was reached; a function may have others.
    """
    return _Finder(sources, one_rank, callers).of(source, node, 0)


class _Finder:
    def __init__(self, sources: Sequence[Source], one_rank: bool, callers: Places) -> None:
        self._sources = sources
        self._one_rank = one_rank
        self._callers = callers

    def of(self, source: Source, node: ast.expr, depth: int) -> Option | None:
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, ast.Call) and called_name(node) in ("int", "bool", "float", "str"):
            return self.of(source, node.args[0], depth + 1) if len(node.args) == 1 else None
        for find in (self._environment, self._argv, self._key_value):
            found = find(source, node)
            if found is not None:
                return found
        if isinstance(node, ast.Name):
            return self._of_name(source, node, depth)
        path = path_of(node)
        if path is not None and len(path) > 1:
            return self._of_path(source, node, path, depth)
        return None

    # What is read by itself.

    def _environment(self, source: Source, node: ast.expr) -> Option | None:
        """`os.environ["X"]`, `os.environ.get("X", 4)`, `os.getenv("X")`."""
        name = None
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("os.environ", "environ"):
            name = text_of(node.slice)
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in _GETENV:
            name = text_of(node.args[0])
        if not name or sets_variable(self._sources, name):
            return None
        return Option(kind="environment", names=(name,), reads="text")

    def _argv(self, source: Source, node: ast.expr) -> Option | None:
        """`sys.argv[3]`, also with what holds where it is missing."""
        if isinstance(node, ast.IfExp) and "argv" in ast.unparse(node.test):
            node = node.body
            if isinstance(node, ast.Call) and called_name(node) in ("int", "float") and node.args:
                node = node.args[0]
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("sys.argv", "argv"):
            place = node.slice
            if isinstance(place, ast.Constant) and isinstance(place.value, int) and place.value > 0:
                return Option(kind="place", place=place.value, reads="text")
        return None

    def _key_value(self, source: Source, node: ast.expr) -> Option | None:
        """`options["workers"]` where `options = dict(a.split("=") for a in sys.argv[1:])`."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            held = node.func.value if node.func.attr == "get" and node.args else None
            key = text_of(node.args[0]) if held is not None else None
        elif isinstance(node, ast.Subscript):
            held, key = node.value, text_of(node.slice)
        else:
            return None
        if not isinstance(held, ast.Name) or key is None:
            return None
        if assigns_to(self._sources, (held.id, key), one_rank=self._one_rank):
            return None
        made = self._assigned(source, held, held.id)
        text = ast.unparse(made) if made is not None else ""
        if "argv" in text and ".split('=')" in text.replace('"', "'").replace(", 1)", ")"):
            return Option(kind="key", names=(key,), reads="text")
        return None

    # Names.

    def _of_name(self, source: Source, node: ast.Name, depth: int) -> Option | None:
        function = source.function(node)
        while function is not None:
            given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            parameter = next((x for x in given if x.arg == node.id), None)
            if parameter is not None:
                if binds(function, node.id):
                    return None  # by then it may be another value than what was given
                return self._of_parameter(source, function, parameter, depth)
            if binds(function, node.id):
                break
            function = source.function(function)
        value = self._assigned(source, node, node.id)
        return self.of(source, value, depth + 1) if value is not None else None

    def _of_parameter(
        self,
        source: Source,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        parameter: ast.arg,
        depth: int,
    ) -> Option | None:
        found = self._by_click(function, parameter.arg) or self._typed(source, function, parameter)
        if found is not None:
            return found
        calls = [
            (x, call)
            for x in self._sources
            for call in x.calls()
            if called_name(call) == function.name
        ]
        calls = [x for x in calls if len(calls) == 1 or x[0].holds(x[1], self._callers)]
        if len(calls) != 1:
            return None
        at, call = calls[0]
        named = given_of(at, call, parameter.arg)
        if named is None:
            names = [x.arg for x in (*function.args.posonlyargs, *function.args.args)]
            if names and names[0] in ("self", "cls"):
                names = names[1:]
            place = names.index(parameter.arg) if parameter.arg in names else len(call.args)
            if any(isinstance(x, ast.Starred) for x in call.args) or place >= len(call.args):
                return None
            named = call.args[place]
        return self.of(at, named, depth + 1)

    def _by_click(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
    ) -> Option | None:
        """`@click.option("-j", "--workers")` of a parameter."""
        for call in function.decorator_list:
            if not isinstance(call, ast.Call) or called_name(call) != "option":
                continue
            words = [w for x in call.args if (w := text_of(x)) is not None]
            flags = [w for w in words if w.startswith("-")]
            named = next((w for w in words if not w.startswith("-")), None)
            if (named or dest_of([f.partition("/")[0] for f in flags])) != name:
                continue
            given = {k.arg: ast.unparse(k.value).rpartition(".")[2] for k in call.keywords}
            kind = given.get("type") or type(constant(call, "default")).__name__
            reads = OF_CLICK.get(kind.lower())
            if reads is None or given.keys() & {"callback", "count", "multiple", "nargs"}:
                return None
            return clicked(flags, is_flag=constant(call, "is_flag") is True, reads=reads)
        return None

    def _typed(
        self,
        source: Source,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        parameter: ast.arg,
    ) -> Option | None:
        """A parameter of a function that typer runs."""
        by_typer = any(
            isinstance(x, ast.Call) and called_name(x) == "command" for x in function.decorator_list
        ) or any(
            ast.unparse(call.func) == "typer.run" and function.name in map(ast.unparse, call.args)
            for x in self._sources
            for call in x.calls()
        )
        if not by_typer or (source.imports("typer") is None and "typer" not in source.text):
            return None
        default = default_of(function, parameter.arg)
        kind = ast.unparse(parameter.annotation) if parameter.annotation is not None else ""
        given = default is not None or parameter in function.args.kwonlyargs
        if not given and "Option" not in kind:
            return None  # an argument, told by its place
        flags: list[str] = []
        for place in (default, parameter.annotation):
            for call in ast.walk(place) if place is not None else ():
                if isinstance(call, ast.Call) and called_name(call) == "Option":
                    if {k.arg for k in call.keywords} & {"callback", "max", "min", "parser"}:
                        return None
                    words = (text_of(x) for x in call.args)
                    flags += [w for w in words if w is not None and w.startswith("-")]
        is_bool = kind == "bool" or kind.startswith("Annotated[bool")
        if not flags:
            flag = f"--{parameter.arg.replace('_', '-')}"
            flags = [f"{flag}/--no-{flag[2:]}" if is_bool else flag]
        return clicked(flags, is_flag=is_bool)

    # Attributes and keys of what holds all options.

    def _of_path(
        self, source: Source, node: ast.expr, path: tuple[str, ...], depth: int
    ) -> Option | None:
        if assigns_to(self._sources, path, one_rank=self._one_rank):
            return None
        root = next(x for x in ast.walk(node) if isinstance(x, ast.Name))
        made = self._held(source, root, path[:-1])
        if made is not None:
            if is_parsed(made):
                return self._argument(path[-1]) or self._field(path)
            if called_name(made) in ("merge", "from_cli") and "from_cli" in ast.unparse(made):
                return Option(kind="key", names=(".".join(path[1:]),))
            if called_name(made) in ("parse", "parse_args_into_dataclasses"):
                return self._field(path)
        if path[0] == "FLAGS" and any("absl" in x.text for x in self._sources):
            return self._absl(path[-1])
        if self._is_hydra(source, root, depth):
            return Option(kind="key", names=(".".join(path[1:]),))
        return None

    def _held(self, source: Source, root: ast.Name, path: tuple[str, ...]) -> ast.Call | None:
        """The call that made what the first names of a path hold: `parser.parse_args()`."""
        value: ast.expr | None
        if path[0] == "self" and len(path) > 1:
            value = of_self(source, path[1])
            if value is None:
                return None
            if isinstance(value, ast.Name):
                return self._held(source, value, (value.id,))
        else:
            value = self._assigned(source, root, path[0])
            if value is None:
                value = self._passed(source, root, path[0])
            if isinstance(value, ast.Constant):
                value = part_returned(self._sources, source, root)
        while isinstance(value, ast.Call) and called_name(value) in ("vars", "asdict", "Namespace"):
            if not value.args:
                return None
            value = value.args[0]
        if isinstance(value, ast.Name) and value.id != root.id:
            return self._held(source, value, (value.id,))
        if isinstance(value, ast.Call) and not is_parsed(value):
            made = self._returned(value)
            return made if made is not None else value
        return value if isinstance(value, ast.Call) else None

    def _passed(self, source: Source, root: ast.Name, name: str) -> ast.expr | None:
        """What the one call of the function gives for this parameter: `args` of `main(args)`."""
        function = source.function(root)
        if function is None:
            return None
        names = [x.arg for x in (*function.args.posonlyargs, *function.args.args)]
        if name not in names:
            return None
        wanted = function.name
        if wanted == "__init__":
            outer = source.parents.get(function)
            wanted = outer.name if isinstance(outer, ast.ClassDef) else wanted
        if names[0] == "self":
            names = names[1:]
        calls = [
            (x, call) for x in self._sources for call in x.calls() if called_name(call) == wanted
        ]
        if len(calls) != 1:
            return None
        at, call = calls[0]
        given = next((k.value for k in call.keywords if k.arg == name), None)
        if given is None and names.index(name) < len(call.args):
            given = call.args[names.index(name)]
        if isinstance(given, ast.Name):
            return self._assigned(at, given, given.id) or self._passed(at, given, given.id)
        return given

    def _returned(self, call: ast.Call) -> ast.Call | None:
        """What a function of the user's returns: `parser.parse_args()` of `get_args()`."""
        for source in self._sources:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.FunctionDef) and node.name == called_name(call):
                    returned = [x.value for x in ast.walk(node) if isinstance(x, ast.Return)]
                    if len(returned) != 1 or returned[0] is None:
                        return None
                    value: ast.expr | None = returned[0]
                    if isinstance(value, ast.Name):
                        value = self._assigned(source, value, value.id)
                    return value if isinstance(value, ast.Call) else None
        return None

    def _assigned(self, source: Source, at: ast.AST, name: str) -> ast.expr | None:
        """The one value that the name is given, in the function or in the module."""
        function = source.function(at)
        scopes: list[ast.AST] = [function] if function is not None else []
        for scope in (*scopes, source.tree):
            values = list(values_of(scope, name))
            if values:
                return values[0] if len(values) == 1 else None
        return None

    # What declares an option.

    def _argument(self, dest: str) -> Option | None:
        """The `add_argument` of that dest; None where several differ."""
        found = []
        for source in self._sources:
            for call in source.calls():
                if called_name(call) != "add_argument":
                    continue
                words = [w for x in call.args if (w := text_of(x)) is not None]
                flags = tuple(w for w in words if w.startswith("-"))
                given = constant(call, "dest")
                if flags and (given or dest_of(flags)) == dest:
                    before = self._of_main_parser(source, call)
                    found.append(declared(call, flags, before_command=before))
        return found[0] if found and all(x == found[0] for x in found) else None

    def _of_main_parser(self, source: Source, call: ast.Call) -> bool:
        """Whether other options may only follow a subcommand: this one comes before it."""
        adds = [x for s in self._sources for x in s.calls() if called_name(x) == "add_parser"]
        if not adds or not isinstance(call.func, ast.Attribute):
            return False
        holder = ast.unparse(call.func.value)
        made = next((v for v in values_of(source.tree, holder, deep=True)), None)
        if isinstance(made, ast.Call) and called_name(made) == "add_parser":
            return False
        if isinstance(made, ast.Call) and called_name(made) in _GROUPS:
            return self._of_main_parser(source, made)
        return not any(
            holder in ast.unparse(k.value) for x in adds for k in x.keywords if k.arg == "parents"
        )

    def _field(self, path: tuple[str, ...]) -> Option | None:
        """A field of a dataclass that a parser fills: `--workers`."""
        parsers = ("HfArgumentParser", "simple_parsing", "TrlParser")
        if not any(p in x.text for x in self._sources for p in parsers):
            return None
        name = path[-1]
        for source in self._sources:
            for node in ast.walk(source.tree):
                if not isinstance(node, ast.ClassDef):
                    continue
                for line in node.body:
                    named = isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == name
                    if named:
                        return Option(kind="flag", names=(f"--{name}",))
        return None

    def _absl(self, name: str) -> Option | None:
        for source in self._sources:
            for call in source.calls():
                defines = called_name(call).startswith("DEFINE_") and call.args
                if defines and text_of(call.args[0]) == name:
                    is_bool = called_name(call) in ("DEFINE_bool", "DEFINE_boolean")
                    off = f"--no{name}" if is_bool else None
                    return Option(kind="flag", names=(f"--{name}",), switch=is_bool, negated=off)
        return None

    def _is_hydra(self, source: Source, root: ast.Name, depth: int) -> bool:
        """Whether the name is the configuration that hydra hands to a function."""
        function = source.function(root)
        if function is None or depth > MAX_DEPTH:
            return False
        if root.id not in [x.arg for x in (*function.args.posonlyargs, *function.args.args)]:
            return False
        if any("hydra.main" in ast.unparse(x) for x in function.decorator_list):
            return True
        for at in self._sources:
            for call in at.calls():
                if called_name(call) != function.name:
                    continue
                for given in call.args:
                    if isinstance(given, ast.Name) and self._is_hydra(at, given, depth + 1):
                        return given.id == root.id
        return False
