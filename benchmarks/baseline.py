"""What people run today, written from its published description: the arithmetic of MAX's ``compare_tensors``.

Both tensors to float32; absolute difference, its maximum and where; relative difference with the
reference guarded by 1e-10, its maximum and where; ``isclose`` and the share outside; and a torch MSE.
"""

from __future__ import annotations

from typing import Any

import torch


def compare_with_torch(reference: torch.Tensor, candidate: torch.Tensor, rtol: float, atol: float) -> dict[str, Any]:
    ref, cand = reference.to(torch.float32), candidate.to(torch.float32)
    error = (ref - cand).abs()
    at_abs = torch.unravel_index(error.argmax(), error.shape)
    relative = error / torch.maximum(ref.abs(), torch.tensor(1e-10))
    at_rel = torch.unravel_index(relative.argmax(), relative.shape)
    close = torch.isclose(ref, cand, rtol=rtol, atol=atol)
    return {
        "max_abs": error.max().item(),
        "max_abs_index": tuple(int(i) for i in at_abs),
        "max_rel": relative.max().item(),
        "max_rel_index": tuple(int(i) for i in at_rel),
        "outside": int((~close).sum()),
        "mse": torch.nn.functional.mse_loss(cand, ref).item(),
    }
