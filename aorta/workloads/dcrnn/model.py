"""The diffusion convolutional recurrent neural network (Li et al., ICLR 2018).

Shapes put the sensor first, (N, batch, features), so that a diffusion step is one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from aorta.workloads.dcrnn.graph import Diffusion
from aorta.workloads.trainer.workload import Batch


class DiffusionConvolution(nn.Module):
    """Equation 2: Σₖ (θₖ₁ (D_O⁻¹W)ᵏ + θₖ₂ (D_I⁻¹Wᵀ)ᵏ) X for k = 0..K, plus a bias.

    Both terms of k = 0 are X itself and share one θ. The diffusion has no parameters and is shared by all
    convolutions of a model.

    Args:
        terms: of the diffusion.
        inputs: features of the signal.
        outputs: features of the result.
        bias: what the bias starts at.
    """

    def __init__(self, terms: int, inputs: int, outputs: int, bias: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(terms * inputs, outputs))
        self.bias = nn.Parameter(torch.full((outputs,), bias))
        nn.init.xavier_normal_(self.weight)

    def forward(self, diffusion: Diffusion, signal: torch.Tensor) -> torch.Tensor:
        """Signal (N, batch, inputs) to (N, batch, outputs)."""
        return diffusion(signal) @ self.weight + self.bias


class DCGRUCell(nn.Module):
    """Equation 3: a gated recurrent unit whose products are diffusion convolutions.

    r, u = σ(Θ ⋆ [X, H] + b), C = tanh(Θ_C ⋆ [X, r ⊙ H] + b_C), H' = u ⊙ H + (1 − u) ⊙ C. One convolution
    makes both gates; their biases start at 1, so that the state is kept until the cell has learned otherwise.
    """

    def __init__(self, terms: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gates = DiffusionConvolution(terms, inputs + hidden, 2 * hidden, bias=1.0)
        self.candidate = DiffusionConvolution(terms, inputs + hidden, hidden)

    def forward(self, diffusion: Diffusion, signal: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Signal (N, batch, inputs) and state (N, batch, hidden) to the next state."""
        both = torch.cat((signal, state), dim=-1)
        reset, update = torch.sigmoid(self.gates(diffusion, both)).chunk(2, dim=-1)
        candidate = torch.tanh(self.candidate(diffusion, torch.cat((signal, reset * state), dim=-1)))
        return update * state + (1 - update) * candidate


class Recurrent(nn.Module):
    """Cells on top of each other, with dropout between them."""

    def __init__(self, terms: int, inputs: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.cells = nn.ModuleList(
            DCGRUCell(terms, inputs if layer == 0 else hidden, hidden) for layer in range(layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, diffusion: Diffusion, signal: torch.Tensor, states: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the next states from a signal (N, batch, inputs) and one state per layer."""
        following: list[torch.Tensor] = []
        for cell, state in zip(self.cells, states, strict=True):
            below = self.dropout(following[-1]) if following else signal
            following.append(cell(diffusion, below, state))
        return following


@dataclass(frozen=True, slots=True)
class DcrnnSizes:
    """Sizes of the model."""

    channels: int
    """Channels of the history: the reading, and what else is known of each moment."""
    horizon: int
    """Readings to forecast."""
    hidden: int
    layers: int
    dropout: float
    sampling_decay: float
    """τ of the inverse sigmoid decay, in batches."""


class DCRNN(nn.Module):
    """Encoder and decoder: a history of readings to the next ones.

    The encoder reads the history; its states start the decoder, which forecasts a reading at a time and is
    given its last forecast, starting from 0. In training, scheduled sampling (section 2.3) gives it the
    true reading instead with probability τ / (τ + exp(i/τ)), i being the number of training batches so far:
    drawn for each sample and moment, and never where the truth is missing.

    Readings are in their own unit outside. Inside they are standardised by the training set's mean and
    deviation, which are saved with the weights; a missing one is the mean.

    Args:
        diffusion: of the sensors' graph.
        sizes: see `DcrnnSizes`.
        mean: of the training readings.
        deviation: their standard deviation.
    """

    def __init__(self, diffusion: Diffusion, sizes: DcrnnSizes, mean: float, deviation: float) -> None:
        super().__init__()
        self.diffusion = diffusion
        self.sizes = sizes
        terms, hidden, layers = diffusion.terms, sizes.hidden, sizes.layers
        self.encoder = Recurrent(terms, sizes.channels, hidden, layers, sizes.dropout)
        self.decoder = Recurrent(terms, 1, hidden, layers, sizes.dropout)
        self.project = nn.Linear(hidden, 1)
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, batch: Batch) -> torch.Tensor:
        """The forecast (batch, horizon, N) of `history` (batch, time, N, channels), channel 0 the reading,
        NaN where missing. In training `target` (batch, horizon, N) is the truth.
        """
        history = batch["history"].permute(1, 2, 0, 3)
        readings = torch.nan_to_num(self._standardise(history[..., :1]), nan=0.0)
        signals = torch.cat((readings, history[..., 1:]), dim=-1)
        _, nodes, samples, _ = signals.shape
        states = [
            signals.new_zeros(nodes, samples, self.sizes.hidden, dtype=self.project.weight.dtype)
            for _ in range(self.sizes.layers)
        ]
        for signal in signals:
            states = self.encoder(self.diffusion, signal, states)
        value = signals.new_zeros(nodes, samples, 1)
        shown = self._shown(batch["target"]) if self.training else None
        forecast: list[torch.Tensor] = []
        for step in range(self.sizes.horizon):
            states = self.decoder(self.diffusion, value, states)
            value = self.project(states[-1]).to(signals.dtype)
            forecast.append(value)
            if shown is not None:
                truth = shown[step]
                value = torch.where(torch.isnan(truth), value, truth)
        outputs = torch.stack(forecast).squeeze(-1).permute(2, 0, 1)
        return outputs * self.get_buffer("deviation") + self.get_buffer("mean")

    def _standardise(self, readings: torch.Tensor) -> torch.Tensor:
        return (readings - self.get_buffer("mean")) / self.get_buffer("deviation")

    def _shown(self, target: torch.Tensor) -> torch.Tensor:
        """The standardised truth (horizon, N, batch, 1) that the decoder is shown, NaN where it is not.

        The counter and the draw stay on the device: no step waits for the host to learn them.
        """
        batches, decay = self.get_buffer("batches"), self.sizes.sampling_decay
        probability = decay / (decay + torch.exp(batches / decay))
        batches += 1
        truth = self._standardise(target).permute(1, 2, 0).unsqueeze(-1)
        horizon, _, samples, _ = truth.shape
        drawn = torch.rand(horizon, 1, samples, 1, device=truth.device) < probability
        return torch.where(drawn, truth, torch.nan)
