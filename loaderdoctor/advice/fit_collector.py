"""Python's garbage collector kept out of the steps, in the script's own lines."""

from __future__ import annotations

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.define import statement_below_imports
from loaderdoctor.advice.patch import Editor
from loaderdoctor.advice.places import iterated
from loaderdoctor.facts.whole import Facts
from loaderdoctor.settings import Value


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
    if source.imports("gc") != "gc":
        statement_below_imports(editor, source, ["import gc"])
    above = source.indent(outer)
    if value == "frozen":
        once = [f"{above}gc.collect()", f"{above}gc.freeze()"]
        if outer is at.loop and source.function(at.loop) is not None:
            # Called for each epoch: what is frozen already is not looked at again.
            inner = f"{above}{_one_level(above)}"
            once = [f"{above}if not gc.get_freeze_count():", *(inner + x.strip() for x in once)]
        editor.insert(source, source.line_start(outer), "\n".join(once))
        return
    editor.insert(source, source.line_start(outer), f"{above}gc.disable()")
    editor.insert(source, source.line_end(at.loop), f"{source.indent(at.loop)}gc.collect()")


def _one_level(indent: str) -> str:
    return "\t" if indent.startswith("\t") else "    "
