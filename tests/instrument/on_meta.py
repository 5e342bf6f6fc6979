"""The meta device stands in for an accelerator: tensors go to it, and no data does."""

from __future__ import annotations

import torch

META = torch.device("meta")
X = torch.arange(6.0)
