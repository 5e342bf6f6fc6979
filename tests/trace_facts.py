"""Facts of a trace, and with some changed, each by one name, wherever in them it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.facts.trace import TraceFacts
from loaderdoctor.trace.columns import Trace

_PLACES = {
    "loader_events": ("fetching", "recorded"),
    "fetch_kind": ("fetching", "kind"),
    "n_fetches_per_step": ("fetching", "n_per_step"),
    "raw_wait_ms": ("fetching", "raw_wait_ms"),
    "waits_ms": ("fetching", "waits_ms"),
    "n_iterators_created": ("fetching", "n_iterators_created"),
    "n_exhausted": ("fetching", "n_exhausted"),
    "startup_ms": ("fetching", "startup_ms"),
    "unmarked_wait_ms": ("fetching", "unmarked_wait_ms"),
    "n_kernels_per_step": ("kernels", "n_per_step"),
    "kernel_busy_ms": ("kernels", "busy_ms"),
    "mean_kernel_us": ("kernels", "mean_us"),
    "communication_ms": ("kernels", "communication_ms"),
    "n_syncs_per_step": ("syncs", "n_per_step"),
    "sync_wait_ms": ("syncs", "wait_ms"),
    "n_to_host_per_step": ("syncs", "n_to_host_per_step"),
    "to_host_bytes": ("syncs", "to_host_bytes"),
    "to_host_ms": ("syncs", "to_host_ms"),
    "idle_after_sync_ms": ("syncs", "idle_after_ms"),
    "host_exposed_ms": ("host", "exposed_ms"),
    "host_hotspots": ("host", "hotspots"),
    "n_kernels_per_call": ("kernels", "n_per_call"),
    "launch_call_ms": ("host", "launch_call_ms"),
    "run_ahead_steps": ("host", "run_ahead_steps"),
    "profiler": ("host", "profiler"),
    "freeing_ms": ("host", "freeing_ms"),
    "all_freeing_ms": ("host", "all_freeing_ms"),
}


def changed(facts: TraceFacts, **changes: Any) -> TraceFacts:
    """The facts with these values; those of fetches, kernels, syncs and the host by plain names."""
    for name, value in changes.items():
        if name in _PLACES:
            group, field = _PLACES[name]
            value = replace(getattr(facts, group), **{field: value})
            facts = replace(facts, **{group: value})
        else:
            facts = replace(facts, **{name: value})
    return facts


def trace_facts(trace: Trace) -> TraceFacts:
    """Shares by the identity, and the figures that explain them, of one capture."""
    return facts_of(attribute(trace))
