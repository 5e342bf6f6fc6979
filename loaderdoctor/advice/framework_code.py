"""Where a framework builds the loader: how its own arguments name the settings."""

from __future__ import annotations

from loaderdoctor.advice.call_edit import literal
from loaderdoctor.advice.code import CodeEdit, edit_loader_call, loader_arguments
from loaderdoctor.settings import Settings

# transformers 4.46 to 5: fields of TrainingArguments that Trainer hands to its DataLoader.
_TRAINING_ARGUMENTS = {
    "num_workers": "dataloader_num_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "batch_size": "per_device_train_batch_size",
}


def edit_framework_call(library: str, changes: Settings) -> CodeEdit:
    """A hint, since the call to change is not in the user's code."""
    arguments = {k: v for k, v in loader_arguments(changes).items() if v is not None}
    if library == "transformers" and set(arguments) <= set(_TRAINING_ARGUMENTS):
        named = ", ".join(f"{_TRAINING_ARGUMENTS[k]}={literal(v)}" for k, v in arguments.items())
        return CodeEdit(before=None, after=f"TrainingArguments(..., {named})")
    hint = edit_loader_call(None, changes)
    return CodeEdit(before=None, after=hint.after, note=f"{library} builds this loader")
