"""Python's garbage collector kept out of the steps, in the script's own lines."""

from __future__ import annotations

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.define import statement_below_imports
from loaderdoctor.advice.patch import Editor
from loaderdoctor.advice.places import iterated
from loaderdoctor.facts.whole import Facts
from loaderdoctor.settings import Value

_FLAG = "objects_frozen"


def collector(editor: Editor, facts: Facts, value: Value) -> None:
    """Frozen: once, before the outermost loop. Manual: off there, asked for at each epoch's end.

    Raises CannotEdit where the loop is not in the script's own lines, or makes one pass only.
    """
    loader = facts.main_loader
    at = iterated(facts, loader) if loader is not None else None
    if at is None or value not in ("frozen", "manual"):
        raise CannotEdit("the loop over it was not found in the script")
    source = at.source
    # Outermost of the function that iterates: what calls it in a loop may do so for each epoch.
    outer = source.loops(at.loop)[-1] if source.loops(at.loop) else at.loop
    if not source.begins_line(outer) or not source.begins_line(at.loop):
        raise CannotEdit("the loop shares its line with other code")
    # Called for each epoch, a function freezes once. By a flag: under Python 3.12 a collection
    # alone makes gc.get_freeze_count() non-zero.
    flagged = value == "frozen" and outer is at.loop and source.function(at.loop) is not None
    if flagged and _FLAG in source.text:
        raise CannotEdit(f"the script has a {_FLAG} of its own")
    needed = ["import gc"] if source.imports("gc") != "gc" else []
    needed += ["", f"{_FLAG} = False"] if flagged else []
    if needed:
        statement_below_imports(editor, source, needed)
    above = source.indent(outer)
    if value == "frozen":
        once = [f"{above}gc.collect()", f"{above}gc.freeze()"]
        if flagged:
            inner = f"{above}{_one_level(above)}"
            once = [
                f"{above}global {_FLAG}",
                f"{above}if not {_FLAG}:",
                f"{inner}{_FLAG} = True",
                *(inner + x.strip() for x in once),
            ]
        editor.insert(source, source.line_start(outer), "\n".join(once))
        return
    editor.insert(source, source.line_start(outer), f"{above}gc.disable()")
    editor.insert(source, source.line_end(at.loop), f"{source.indent(at.loop)}gc.collect()")


def _one_level(indent: str) -> str:
    return "\t" if indent.startswith("\t") else "    "
