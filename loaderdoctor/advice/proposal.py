"""One candidate: what differs from the user's own settings, the lines to write, the prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loaderdoctor.advice.code import edits_for, loader_arguments
from loaderdoctor.advice.plan import Candidate
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.capacity import by_ablation
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.instrument.wire.records import LoaderRecord
from loaderdoctor.settings import Settings, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What candidates are proposed for: the loop, its loader as it is, and what was found."""

    facts: Facts
    loader: LoaderRecord
    found: Mapping[Kind, Finding]

    def explained_ms(self, kind: Kind) -> float | None:
        """What of a step the finding of this kind explains; None without finding, share or step."""
        finding, step_ms = self.found.get(kind), self.facts.step_ms
        if finding is None or finding.share is None or step_ms is None:
            return None
        return finding.share * step_ms

    def propose(
        self,
        *kinds: Kind,
        changes: Mapping[str, Value],
        predicted_ms: float | None,
        how: str,
        caution: str | None = None,
    ) -> list[Candidate]:
        """The candidate that answers these kinds, `how` it was predicted being said with it.

        Of `changes` only what differs from the user's own settings; empty where nothing does.
        """
        loader = self.loader
        have = loader.settings.as_dict()
        if self.facts.transfers and all(t.non_blocking for t in self.facts.transfers):
            have["non_blocking"] = True
        settings = Settings(**{k: v for k, v in changes.items() if v != have[k]})  # type: ignore[arg-type]
        if not settings.changed():
            return []
        whole = settings.over(loader.settings)
        threads_and_workers = whole.background not in (None, "off") and bool(whole.num_workers)
        in_data = settings.resident or settings.cache or settings.uint8
        in_thread = settings.background in ("host", "device")
        reopens = bool(loader_arguments(settings)) or in_data is True or in_thread
        cautions = [caution] if caution else []
        if reopens and loader.safety.one_pass:
            reason = loader.safety.one_pass_reason or "its data can't be read twice"
            cautions.append(f"Not tried in this run: {reason}.")
        candidate = Candidate(
            settings=settings,
            kinds=kinds,
            loader=loader.id,
            predicted_step_ms=predicted_ms,
            prediction=how,
            predicted_from="ablation" if by_ablation(self.facts) else "trace",
            edits=edits_for(self.facts, settings),
            caution=" ".join(cautions) or None,
            live=not (
                settings.start_method or threads_and_workers or (reopens and loader.safety.one_pass)
            ),
        )
        return [candidate]
