"""One candidate: what differs from the user's own settings, the lines to write, the prediction."""

from __future__ import annotations

from loaderdoctor.advice.axis_code import axis_code
from loaderdoctor.advice.code import CodeEdit, edit_loader_call, edit_transfer, loader_arguments
from loaderdoctor.advice.framework_code import edit_framework_call
from loaderdoctor.advice.plan import Candidate
from loaderdoctor.advice.snippets import BACKGROUND, RESIDENT, SIDE_STREAM
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import by_ablation
from loaderdoctor.findings.model import Kind
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings, Value


def proposal(
    loader: LoaderRecord,
    facts: Facts,
    kinds: tuple[Kind, ...],
    changes: dict[str, Value],
    predicted_ms: float | None,
    how: str,
    caution: str | None,
) -> Candidate | None:
    """A candidate of what differs from the user's own settings; None where nothing does."""
    have = loader.settings.as_dict()
    if facts.transfers and all(t.non_blocking for t in facts.transfers):
        have["non_blocking"] = True
    settings = Settings(**{k: v for k, v in changes.items() if v != have[k]})  # type: ignore[arg-type]
    if not settings.changed():
        return None
    whole = settings.over(loader.settings)
    threads_and_workers = whole.background not in (None, "off") and bool(whole.num_workers)
    in_data = settings.resident or settings.cache or settings.uint8
    in_thread = settings.background in ("host", "device")
    reopens = bool(loader_arguments(settings)) or in_data is True or in_thread
    cautions = [caution] if caution else []
    if reopens and loader.safety.one_pass:
        reason = loader.safety.one_pass_reason or "its data can't be read twice"
        cautions.append(f"Not tried in this run: {reason}.")
    return Candidate(
        settings=settings,
        kinds=kinds,
        loader=loader.id,
        predicted_step_ms=predicted_ms,
        prediction=how,
        predicted_from="ablation" if by_ablation(facts) else "trace",
        edits=edits_for(facts, settings),
        caution=" ".join(cautions) or None,
        live=not (
            settings.start_method or threads_and_workers or (reopens and loader.safety.one_pass)
        ),
    )


def edits_for(facts: Facts, settings: Settings) -> tuple[CodeEdit, ...]:
    """The lines to write for these settings: the loader's call, the copies, the loop."""
    loader = facts.main_loader
    edits: list[CodeEdit] = []
    if loader is not None and loader_arguments(settings):
        if loader.library is not None:
            edits.append(edit_framework_call(loader.library, settings))
        else:
            edits.append(edit_loader_call(loader.code, settings, index=loader.call_index))
    if settings.non_blocking:
        lines = {
            (t.site, t.code): edit_transfer(t.code, t.call)
            for t in facts.transfers
            if not t.non_blocking
        }
        exact = {e.before: e for e in lines.values() if e.exact}
        edits += exact.values() or [edit_transfer(None)]
    if settings.background in ("host", "device"):
        edits.append(CodeEdit(before=None, after=BACKGROUND))
    if settings.side_stream:
        edits.append(CodeEdit(before=None, after=SIDE_STREAM))
    if settings.resident:
        edits.append(CodeEdit(before=None, after=RESIDENT))
    edits += [CodeEdit(before=None, after=text) for text in axis_code(settings)]
    return tuple(edits)
