"""Turns traffic into samples: splits in time, windows, the training set's mean and deviation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from aorta.config import schema
from aorta.errors import ConfigError
from aorta.workloads.dcrnn import files
from aorta.workloads.dcrnn.graph import Matrix
from aorta.workloads.dcrnn.traffic import Traffic, generate

SHARES = (0.7, 0.1)
"""Shares of the time for training and validation; the rest is the test."""
GENERATED_NODES = 32
SPLITS = ("train", "val", "test")


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Windows of traffic: `history` (seq_len, N, channels), channel 0 the reading and channel 1, where the
    moments are known, the time of day; and `target` (pred_len, N). Missing readings are NaN.

    Args:
        signals: (T, N, channels).
        seq_len: moments of a history.
        pred_len: moments of a target, right behind.
        delay_ms: slept for each sample.
    """

    def __init__(
        self, signals: NDArray[np.float32], seq_len: int, pred_len: int, delay_ms: float = 0.0
    ) -> None:
        self.signals = signals
        self._seq_len = seq_len
        self._length = seq_len + pred_len
        self._delay_ms = delay_ms

    def __len__(self) -> int:
        return max(len(self.signals) - self._length + 1, 0)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        _sleep(self._delay_ms)
        window = torch.from_numpy(self.signals[index : index + self._length])
        return {"history": window[: self._seq_len], "target": window[self._seq_len :, :, 0]}


class Stored(Dataset[dict[str, torch.Tensor]]):
    """Windows that were made beforehand, as `Samples`."""

    def __init__(self, windows: files.Windows, delay_ms: float = 0.0) -> None:
        self.windows = windows
        self._delay_ms = delay_ms

    def __len__(self) -> int:
        return len(self.windows.history)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        _sleep(self._delay_ms)
        windows = self.windows
        return {
            "history": torch.from_numpy(windows.history[index]),
            "target": torch.from_numpy(windows.target[index]),
        }


def _sleep(milliseconds: float) -> None:
    if milliseconds:
        time.sleep(milliseconds / 1000)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Everything that is learned from: samples in time order, the graph, the scale of the readings."""

    train: Samples | Stored
    validation: Samples | Stored
    test: Samples | Stored
    weights: Matrix
    channels: int
    mean: float
    deviation: float


def split(config: schema.Config) -> Split:
    """The data of a configuration.

    Mean and deviation are those of the training readings; no window reaches from one part into another.

    Raises:
        ConfigError: the configuration does not fit the data; names both.
        ArtefactError: a file cannot be used.
    """
    chosen = config.dcrnn
    if chosen.data is None and chosen.adjacency is not None:
        raise ConfigError(
            f"dcrnn.adjacency is {chosen.adjacency}, but dcrnn.data is null: generated traffic has its own"
            " graph",
            "set dcrnn.data too, or remove dcrnn.adjacency",
        )
    if chosen.data is not None and chosen.adjacency is None:
        raise ConfigError(
            f"dcrnn.data is {chosen.data}, but dcrnn.adjacency is null: the readings need their graph",
            "set dcrnn.adjacency to its .pkl, .npz, .npy or .csv file",
        )
    if chosen.data is None or chosen.adjacency is None:
        nodes = chosen.num_nodes or GENERATED_NODES
        return _cut(generate(nodes, chosen.num_steps, config.dataset.seed), config)
    data, adjacency = Path(chosen.data), Path(chosen.adjacency)
    for key, path in (("data", data), ("adjacency", adjacency)):
        if not path.exists():
            raise ConfigError(f"dcrnn.{key}: {path} does not exist", "name an existing file")
    if data.is_dir():
        return _stored(data, adjacency, config)
    traffic = files.read_traffic(data, adjacency, chosen.missing_value)
    _check_nodes(config, len(traffic.weights), data)
    return _cut(traffic, config)


def bounds(moments: int) -> tuple[int, int]:
    """The ends of training and of validation, in moments."""
    train = int(moments * SHARES[0])
    return train, train + int(moments * SHARES[1])


def _cut(traffic: Traffic, config: schema.Config) -> Split:
    chosen = config.dcrnn
    signals = traffic.readings[..., None]
    if traffic.time_of_day is not None:
        clock = np.broadcast_to(traffic.time_of_day[:, None, None], signals.shape)
        signals = np.concatenate((signals, clock), axis=-1)
    first, second = bounds(len(signals))
    delays = (config.dataset.delay_ms, 0.0, 0.0)
    pieces = (signals[:first], signals[first:second], signals[second:])
    parts = [
        Samples(np.ascontiguousarray(piece), chosen.seq_len, chosen.pred_len, delay)
        for piece, delay in zip(pieces, delays, strict=True)
    ]
    for name, part in zip(SPLITS, parts, strict=True):
        if not len(part):
            raise ConfigError(
                f"the {name} part of the traffic has {len(part.signals)} readings per sensor; a window"
                f" needs {chosen.seq_len + chosen.pred_len} (dcrnn.seq_len + dcrnn.pred_len)",
                "raise dcrnn.num_steps of generated traffic, or lower dcrnn.seq_len or dcrnn.pred_len",
            )
    mean, deviation = _scale(traffic.readings[:first])
    train, validation, test = parts
    return Split(train, validation, test, traffic.weights, signals.shape[-1], mean, deviation)


def _stored(folder: Path, adjacency: Path, config: schema.Config) -> Split:
    chosen = config.dcrnn
    found = [files.read_windows(folder / f"{name}.npz", chosen.missing_value) for name in SPLITS]
    for name, windows in zip(SPLITS, found, strict=True):
        shapes = (windows.history.shape[1:], windows.target.shape[1])
        if shapes != (found[0].history.shape[1:], found[0].target.shape[1]):
            raise ConfigError(
                f"{folder / name}.npz: windows differ in size from the windows of train.npz",
                "write all three files again with one seq_len and pred_len",
            )
    _, length, nodes, channels = found[0].history.shape
    for key, value in (("seq_len", length), ("pred_len", found[0].target.shape[1])):
        if getattr(chosen, key) != value:
            raise ConfigError(
                f"dcrnn.{key} is {getattr(chosen, key)}, but the windows in {folder} have {value}",
                f"set dcrnn.{key}={value}",
            )
    _check_nodes(config, nodes, folder)
    weights = files.read_adjacency(adjacency).weights
    files.check_graph(weights, nodes, folder, adjacency)
    delays = (config.dataset.delay_ms, 0.0, 0.0)
    parts = [Stored(windows, delay) for windows, delay in zip(found, delays, strict=True)]
    mean, deviation = _scale(found[0].history[..., 0])
    train, validation, test = parts
    return Split(train, validation, test, weights, channels, mean, deviation)


def _check_nodes(config: schema.Config, nodes: int, data: Path) -> None:
    if config.dcrnn.num_nodes not in (None, nodes):
        raise ConfigError(
            f"dcrnn.num_nodes is {config.dcrnn.num_nodes}, but {data} has {nodes} sensors",
            f"set dcrnn.num_nodes={nodes}, or null to take what the data has",
        )


def _scale(readings: NDArray[np.float32]) -> tuple[float, float]:
    observed = readings[~np.isnan(readings)].astype(np.float64)
    deviation = float(observed.std()) if observed.size else 0.0
    if not deviation:
        raise ConfigError(
            f"the training part has {observed.size} readings that are all equal or missing",
            "check dcrnn.data and dcrnn.missing_value",
        )
    return float(observed.mean()), deviation
