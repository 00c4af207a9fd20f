"""Traffic from a user's files: METR-LA and PEMS-BAY in their usual forms.

Nothing in them is guessed: a shape or a key that does not fit is an error that names the file, what it holds
and what is expected.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aorta.errors import ArtefactError
from aorta.workloads.dcrnn import pickles
from aorta.workloads.dcrnn.graph import Matrix
from aorta.workloads.dcrnn.traffic import Traffic

NS_PER_DAY = 86_400 * 10**9
READINGS_KEYS = ("readings", "data")
ADJACENCY_KEYS = ("adjacency", "adj_mx", "weights")
NPZ_HINT = (
    "save the readings as .npz: numpy.savez(file, readings=<time × sensors>, timestamps=<datetime64 or ns>)"
)


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """Readings as a file holds them: (T, N); `sensors` are names, `timestamps` ns since 1970, if it says."""

    values: Matrix
    sensors: tuple[str, ...] | None = None
    timestamps: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Adjacency:
    """A graph as a file holds it: (N, N); `sensors` are names, if it says."""

    weights: Matrix
    sensors: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """One file of windows: `history` (samples, time, N, channels) and `target` (samples, horizon, N)."""

    history: NDArray[np.float32]
    target: NDArray[np.float32]


def read_traffic(data: Path, adjacency: Path, missing_value: float | None) -> Traffic:
    """Readings and graph. Where both name their sensors, the graph is brought into the readings' order.

    Raises:
        ArtefactError: names the file, what it holds and what was expected.
    """
    readings, graph = read_readings(data), read_adjacency(adjacency)
    weights = _in_order(graph, readings, adjacency)
    nodes = readings.values.shape[1]
    check_graph(weights, nodes, data, adjacency)
    clock = readings.timestamps
    time_of_day = None if clock is None else (clock % NS_PER_DAY / NS_PER_DAY).astype(np.float32)
    return Traffic(mask(readings.values, missing_value), weights, time_of_day)


def check_graph(weights: Matrix, nodes: int, data: Path, adjacency: Path) -> None:
    """A graph of another number of sensors than the readings is refused."""
    if len(weights) != nodes:
        raise ArtefactError(
            f"{adjacency}: a graph of {len(weights)} sensors, but {data} has {nodes}",
            "use a graph and readings of the same sensors, in the same order",
        )


def mask(values: NDArray[np.floating], missing_value: float | None) -> NDArray[np.float32]:
    """A copy in fp32 with NaN where a reading is missing."""
    masked = np.array(values, dtype=np.float32)
    if missing_value is not None:
        masked[masked == np.float32(missing_value)] = np.nan
    return masked


def read_readings(path: Path) -> Readings:
    """The readings in an HDF5 or npz file.

    Raises:
        ArtefactError: see `read_traffic`.
    """
    if path.suffix in (".h5", ".hdf5", ".hdf"):
        return _hdf5(path)
    if path.suffix == ".npz":
        return _npz_readings(path)
    raise ArtefactError(f"{path}: readings must be in an .h5, .hdf5 or .npz file", NPZ_HINT)


def read_adjacency(path: Path) -> Adjacency:
    """The graph in a pkl, npz, npy or csv file: an N × N matrix of weights that are not negative.

    Raises:
        ArtefactError: see `read_traffic`.
    """
    sensors: tuple[str, ...] | None = None
    if path.suffix in (".pkl", ".pickle"):
        matrix, sensors = _pickled(path)
    elif path.suffix == ".npz":
        with _archive(path) as archive:
            matrix = _member(path, archive, *ADJACENCY_KEYS)
    elif path.suffix == ".npy":
        matrix = _array(path)
    elif path.suffix == ".csv":
        matrix = _csv(path)
    else:
        raise ArtefactError(f"{path}: a graph must be in a .pkl, .npz, .npy or .csv file")
    weights = _numbers(path, "the graph", matrix, 2)
    if weights.shape[0] != weights.shape[1]:
        raise ArtefactError(f"{path}: the graph is {_shape(weights)}, expected sensors × sensors")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ArtefactError(f"{path}: the graph has weights that are negative or not finite")
    return Adjacency(weights.astype(np.float32), sensors)


def read_windows(path: Path, missing_value: float | None) -> Windows:
    """One file of `x` (samples × time × sensors × channels) and `y` (likewise): windows made beforehand.

    Raises:
        ArtefactError: see `read_traffic`.
    """
    with _archive(path) as archive:
        x, y = (_numbers(path, key, _member(path, archive, key), 4) for key in ("x", "y"))
    if len(x) != len(y) or x.shape[2] != y.shape[2]:
        raise ArtefactError(
            f"{path}: x is {_shape(x)} and y is {_shape(y)}: expected equal numbers of samples and sensors"
        )
    if np.isnan(x[..., 1:]).any():
        raise ArtefactError(
            f"{path}: x has NaN outside channel 0: only readings, in channel 0, may be missing"
        )
    history = np.array(x, dtype=np.float32)
    history[..., 0] = mask(x[..., 0], missing_value)
    return Windows(history, mask(y[..., 0], missing_value))


# --- formats -----------------------------------------------------------------------------------------------


def _hdf5(path: Path) -> Readings:
    try:
        import h5py
    except ImportError:
        raise ArtefactError(f"{path}: reading HDF5 needs h5py", f"pip install h5py, or {NPZ_HINT}") from None
    try:
        with h5py.File(path, "r") as file:
            group = next((item for item in file.values() if "block0_values" in item), None)
            if group is None or "block1_values" in group:
                raise ArtefactError(
                    f"{path}: contains {', '.join(file)}, expected one pandas table with a single number "
                    f"type",
                    NPZ_HINT,
                )
            values = _numbers(path, f"{group.name}/block0_values", group["block0_values"][()], 2)
            sensors = tuple(_text(name) for name in group["block0_items"][()].tolist())
            return Readings(values, sensors, _timestamps(path, group["axis1"][()], len(values)))
    except (OSError, KeyError) as error:
        raise ArtefactError(f"{path}: not a pandas table in HDF5: {error}", NPZ_HINT) from error


def _npz_readings(path: Path) -> Readings:
    with _archive(path) as archive:
        values = _member(path, archive, *READINGS_KEYS)
        clock = _member(path, archive, "timestamps") if "timestamps" in archive.files else None
    # (time, sensors, channels), as the PEMS sets come: the first channel is what is forecast.
    plain = _numbers(path, "the readings", values[..., 0] if values.ndim == 3 else values, 2)
    if clock is not None and clock.dtype.kind == "M":
        clock = clock.astype("datetime64[ns]").astype(np.int64)
    return Readings(plain, None, None if clock is None else _timestamps(path, clock, len(plain)))


def _timestamps(path: Path, clock: NDArray[Any], moments: int) -> NDArray[np.int64]:
    if clock.dtype.kind not in "iu" or clock.shape != (moments,):
        raise ArtefactError(
            f"{path}: timestamps are {clock.dtype} of {_shape(clock)}, expected {moments} times in ns"
        )
    return clock.astype(np.int64)


def _pickled(path: Path) -> tuple[Any, tuple[str, ...] | None]:
    content = pickles.load(path)
    # (sensor names, their positions, matrix), as the data sets' own tools write it; or the matrix alone.
    if isinstance(content, (list, tuple)) and len(content) == 3:
        names, _, matrix = content
        return matrix, tuple(_text(name) for name in names)
    return content, None


def _csv(path: Path) -> NDArray[np.float64]:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArtefactError(f"{path}: {error}") from error
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows):
            raise ArtefactError(
                f"{path}: row {number} has {len(row)} cells, expected {len(rows)}: expected a matrix without "
                "a header"
            )
    try:
        return np.array([[float(cell) for cell in row] for row in rows], dtype=np.float64)
    except ValueError as error:
        raise ArtefactError(f"{path}: {error}", "remove the header: every cell must be a number") from error


def _array(path: Path) -> NDArray[Any]:
    try:
        loaded: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArtefactError(f"{path}: not an array of numbers: {error}") from error
    return loaded


def _archive(path: Path) -> np.lib.npyio.NpzFile:
    try:
        opened = np.load(path, allow_pickle=False)
    except Exception as error:  # zip, zlib and numpy each have their own
        raise ArtefactError(f"{path}: not an npz archive: {error}") from error
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise ArtefactError(f"{path}: a single array, expected an npz archive of named arrays")
    return opened


def _member(path: Path, archive: np.lib.npyio.NpzFile, *wanted: str) -> NDArray[Any]:
    """The first of the arrays `wanted` that is there."""
    key = next((key for key in wanted if key in archive.files), None)
    if key is None:
        found = ", ".join(archive.files) or "nothing"
        raise ArtefactError(f"{path}: contains {found}, expected {' or '.join(wanted)}")
    try:
        member: NDArray[Any] = archive[key]
    except Exception as error:  # zip, zlib and numpy each have their own
        raise ArtefactError(f"{path}: {key}: not an array of numbers: {error}") from error
    return member


def _numbers(path: Path, what: str, values: Any, dimensions: int) -> NDArray[Any]:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        raise ArtefactError(f"{path}: {what}: expected an array of numbers, found {_kind(values)}")
    if values.ndim != dimensions or 0 in values.shape:
        raise ArtefactError(f"{path}: {what}: shape {_shape(values)}, expected {dimensions} dimensions")
    if np.isinf(values).any():
        raise ArtefactError(f"{path}: {what}: contains infinite numbers", "write NaN for a missing reading")
    return values


def _in_order(graph: Adjacency, readings: Readings, path: Path) -> Matrix:
    """The graph's rows and columns in the order of the readings' sensors."""
    if graph.sensors is None or readings.sensors is None:
        return graph.weights
    position = {name: index for index, name in enumerate(graph.sensors)}
    missing = [name for name in readings.sensors if name not in position]
    if missing or len(graph.weights) != len(graph.sensors):
        known = f"sensor {missing[0]} of the readings" if missing else "a name for each of its rows"
        raise ArtefactError(f"{path}: the graph lacks {known}", "use the graph of the same data set")
    order = [position[name] for name in readings.sensors]
    return graph.weights[np.ix_(order, order)]


def _text(name: object) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, np.ndarray) else type(value).__name__


def _shape(values: NDArray[Any]) -> str:
    return " × ".join(str(size) for size in values.shape)
