"""How settings are written: by an option of the script's, in its lines, or in words."""

from __future__ import annotations

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.code import Written, edits_for, hints_for
from loaderdoctor.advice.command_line import rerun
from loaderdoctor.advice.fit_settings import fit_settings
from loaderdoctor.advice.guard import guarded
from loaderdoctor.advice.patch import Editor
from loaderdoctor.advice.source import sources_of
from loaderdoctor.facts.whole import Facts
from loaderdoctor.settings import Settings


def written(facts: Facts, settings: Settings) -> Written:
    """What to type or to write for these settings; words where no line is known to fit."""
    if not sources_of(facts):
        return Written.of(edits_for(facts, settings))
    again = rerun(facts, settings)
    by_option = again.arguments if again is not None else frozenset()
    code, idea = "", None
    editor = Editor()
    try:
        by_hand = fit_settings(editor, facts, settings, without=by_option)
        code, guard = guarded(facts, settings, editor)
        idea = " ".join(filter(None, (by_hand, guard))) or None
    except CannotEdit as why:
        idea = hints_for(facts, settings, without=by_option, why=str(why))
    said = None
    if again is not None:
        said = f"Run it with `{' '.join(again.options)}`."
    return Written(
        code=code,
        idea=" ".join(filter(None, (said, idea))) or None,
        command=again.command if again is not None else None,
    )
