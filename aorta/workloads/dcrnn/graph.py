"""The sensors' graph and its random walks (Li et al., ICLR 2018, section 2.2 and appendix C)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Matrix = NDArray[np.float32]
Form = Literal["dense", "sparse"]


def gaussian_kernel(distances: NDArray[np.floating], threshold: float) -> Matrix:
    """Weights exp(−d²/σ²) of the distances d (N × N, any unit), σ their standard deviation; those below
    `threshold` are 0, and so are infinite distances. The diagonal is 1 where its distances are 0.
    """
    finite = np.isfinite(distances)
    sigma = float(distances[finite].std())
    if sigma == 0:
        raise ValueError("all distances are equal: the kernel has no scale")
    weights = np.exp(-np.square(np.where(finite, distances, 0) / sigma))
    kept: Matrix = np.where(finite & (weights >= threshold), weights, 0).astype(np.float32)
    return kept


def transitions(weights: Matrix) -> tuple[Matrix, Matrix]:
    """The two random walks of a graph with weights W (from row to column, N × N).

    Returns:
        D_O⁻¹ W, the walk along the edges, and D_I⁻¹ Wᵀ, the walk against them. Each row sums to 1, or to 0
        for a sensor without such edges.
    """
    return _walk(weights), _walk(weights.T)


def _walk(weights: Matrix) -> Matrix:
    degree = weights.sum(axis=1, keepdims=True)
    walk: Matrix = np.divide(weights, degree, out=np.zeros_like(weights), where=degree > 0)
    return walk


class Diffusion(nn.Module):
    """The signal after `steps` steps of both walks.

    Dense matrices are multiplied out beforehand, so that all steps are one product of (2·steps·N × N) by
    the signal: few large kernels. Sparse ones take a step at a time, in fp32 whatever the autocast type,
    because their powers would fill up.

    Args:
        weights: W, N × N.
        steps: K, at least 1.
        form: how the matrices are kept.
    """

    def __init__(self, weights: Matrix, steps: int, form: Form) -> None:
        super().__init__()
        self.nodes = len(weights)
        self.steps = steps
        self.form = form
        walks = [torch.from_numpy(walk) for walk in transitions(weights)]
        # Not in a checkpoint: they follow from the graph.
        if form == "dense":
            powers = [torch.linalg.matrix_power(walk, k + 1) for walk in walks for k in range(steps)]
            self.register_buffer("powers", torch.cat(powers), persistent=False)
        else:
            for name, walk in zip(("along", "against"), walks, strict=True):
                self.register_buffer(name, walk.to_sparse_coo().coalesce(), persistent=False)

    @property
    def terms(self) -> int:
        """2K + 1: the signal itself and K steps of each walk."""
        return 2 * self.steps + 1

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        """Signal (N, batch, F) to (N, batch, terms · F): X, then (D_O⁻¹W)ᵏ X, then (D_I⁻¹Wᵀ)ᵏ X, k = 1..K."""
        nodes, batch, features = signal.shape
        flat = signal.reshape(nodes, batch * features)
        if self.form == "dense":
            walked = (self.get_buffer("powers").to(flat.dtype) @ flat).reshape(-1, nodes, batch * features)
            parts = torch.cat((flat.to(walked.dtype).unsqueeze(0), walked))
        else:
            parts = torch.stack(self._steps(flat))
        return parts.reshape(self.terms, nodes, batch, features).permute(1, 2, 0, 3).reshape(nodes, batch, -1)

    def _steps(self, flat: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast(flat.device.type, enabled=False):
            start = flat.to(self.get_buffer("along").dtype)
            parts = [start]
            for name in ("along", "against"):
                walk, state = self.get_buffer(name), start
                for _ in range(self.steps):
                    state = torch.sparse.mm(walk, state)
                    parts.append(state)
        return parts
