"""Which accelerator the loop trains on, found without initialising one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_of(optimizer: torch.optim.Optimizer) -> torch.device | None:
    """Where an optimizer's first parameter lies."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            device: torch.device = parameter.device
            return device
    return None


def training_device(optimizer_device: torch.device | None) -> torch.device | None:
    """The CUDA (or ROCm) device in use; None where the loop trains on the CPU."""
    import torch

    if optimizer_device is not None and optimizer_device.type == "cuda":
        return optimizer_device
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device())
    return None
