"""The data sets' usual forms, and what is said about others."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from aorta.errors import ArtefactError
from aorta.workloads.dcrnn.files import mask, read_adjacency, read_readings, read_traffic, read_windows

MATRIX = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.25], [0.75, 0.0, 1.0]])
READINGS = np.array([[60.0, 61.0, 0.0], [62.0, np.nan, 63.0]])
CLOCK = np.array(["2012-03-01T00:00", "2012-03-01T18:00"], dtype="datetime64[m]")


def pandas_hdf5(path: Path, key: str = "df", sensors: tuple[bytes, ...] = (b"a", b"b", b"c")) -> Path:
    """A file as pandas' fixed format lays one out."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        group = file.create_group(key)
        group["axis0"] = group["block0_items"] = np.array(sensors)
        group["axis1"] = CLOCK.astype("datetime64[ns]").astype(np.int64)
        group["block0_values"] = READINGS
    return path


def test_hdf5_of_pandas(tmp_path: Path) -> None:
    readings = read_readings(pandas_hdf5(tmp_path / "metr-la.h5"))
    np.testing.assert_array_equal(readings.values, READINGS)
    assert readings.sensors == ("a", "b", "c")
    assert readings.timestamps is not None
    assert pd.to_datetime(readings.timestamps).tolist() == pd.to_datetime(CLOCK).tolist()


def test_hdf5_without_h5py_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metr-la.h5"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        ArtefactError, match=r"(?s)metr-la\.h5: reading HDF5 needs h5py.*pip install h5py.*npz"
    ):
        read_readings(path)


def test_hdf5_of_something_else_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_group("other")
        file["plain"] = np.zeros(3)
    with pytest.raises(ArtefactError, match=r"x\.h5: contains other, plain"):
        read_readings(path)
    path.write_bytes(b"text")
    with pytest.raises(ArtefactError, match=r"x\.h5: not a pandas table"):
        read_readings(path)


@pytest.mark.parametrize("key", ["readings", "data"])
@pytest.mark.parametrize("channels", [False, True])
def test_npz_of_readings(tmp_path: Path, key: str, channels: bool) -> None:
    path = tmp_path / "r.npz"
    values = np.stack((READINGS, READINGS * 0), axis=-1) if channels else READINGS
    np.savez(path, **{key: values}, timestamps=CLOCK)
    readings = read_readings(path)
    np.testing.assert_array_equal(readings.values, READINGS)
    assert readings.timestamps is not None
    assert readings.timestamps[0] == pd.Timestamp("2012-03-01").value


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"speed": READINGS}, r"r\.npz: contains speed, expected readings or data"),
        ({"readings": READINGS[0]}, r"the readings: shape 3, expected 2 dimensions"),
        ({"readings": np.empty((0, 3))}, r"the readings: shape 0 × 3"),
        ({"readings": np.array([["a"]])}, r"expected an array of numbers, found <U1"),
        ({"readings": np.where(READINGS == 60, np.inf, READINGS)}, "the readings: contains infinite numbers"),
        ({"readings": READINGS, "timestamps": np.arange(3)}, r"timestamps are int64 of 3, expected 2 times"),
        ({"readings": READINGS, "timestamps": np.zeros(2)}, r"timestamps are float64"),
    ],
)
def test_wrong_readings_are_named(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    path = tmp_path / "r.npz"
    np.savez(path, **arrays)
    with pytest.raises(ArtefactError, match=said):
        read_readings(path)


def test_objects_in_an_npz_are_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    np.savez(path, readings=np.array([{}], dtype=object))
    with pytest.raises(ArtefactError, match=r"r\.npz"):
        read_readings(path)


def test_unknown_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"readings must be in an \.h5"):
        read_readings(tmp_path / "r.parquet")
    with pytest.raises(ArtefactError, match=r"a graph must be in a \.pkl"):
        read_adjacency(tmp_path / "g.mtx")


@pytest.mark.parametrize("ending", ["npz", "npy", "csv", "pkl", "plain.pkl"])
def test_graphs(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"g.{ending}"
    if ending == "npz":
        np.savez(path, adj_mx=MATRIX)
    elif ending == "npy":
        np.save(path, MATRIX)
    elif ending == "csv":
        path.write_text("1,0.5,0\n0,1,0.25\n0.75,0,1\n")
    else:
        named = (["a", "b", "c"], {"a": 0, "b": 1, "c": 2}, MATRIX)
        path.write_bytes(pickle.dumps(MATRIX if ending == "plain.pkl" else named))
    graph = read_adjacency(path)
    assert graph.weights.tolist() == MATRIX.tolist()
    assert graph.sensors == (("a", "b", "c") if ending == "pkl" else None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2\n", "row 1 has 2 cells, expected 1"),
        ("from,to\n1,2\n", "could not convert"),
        ("1,-2\n0,1\n", "negative or not finite"),
        ("1,nan\n0,1\n", "negative or not finite"),
        ("", "shape 0"),
    ],
)
def test_wrong_graphs_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "g.csv"
    path.write_text(text)
    with pytest.raises(ArtefactError, match=rf"g\.csv: .*{said}"):
        read_adjacency(path)


def test_a_graph_that_is_no_square_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.npy"
    np.save(path, MATRIX[:2])
    with pytest.raises(ArtefactError, match="the graph is 2 × 3"):
        read_adjacency(path)
    path.write_bytes(b"text")
    with pytest.raises(ArtefactError, match="not an array of numbers"):
        read_adjacency(path)


def test_the_graph_comes_into_the_order_of_the_readings(tmp_path: Path) -> None:
    graph = tmp_path / "g.pkl"
    graph.write_bytes(pickle.dumps((["c", "a", "b"], {}, MATRIX)))
    traffic = read_traffic(pandas_hdf5(tmp_path / "d.h5"), graph, 0.0)
    order = [1, 2, 0]  # where a, b and c are in the graph
    assert traffic.weights.tolist() == MATRIX[np.ix_(order, order)].tolist()
    assert traffic.time_of_day is not None
    assert traffic.time_of_day.tolist() == [0.0, 0.75]


def test_graphs_of_other_sensors_are_refused(tmp_path: Path) -> None:
    data, graph = pandas_hdf5(tmp_path / "d.h5"), tmp_path / "g.pkl"
    graph.write_bytes(pickle.dumps((["x", "a", "b"], {}, MATRIX)))
    with pytest.raises(ArtefactError, match="lacks sensor c of the readings"):
        read_traffic(data, graph, 0.0)
    unnamed = tmp_path / "g.npy"
    np.save(unnamed, MATRIX[:2, :2])
    with pytest.raises(ArtefactError, match=r"a graph of 2 sensors, but .*d\.h5 has 3"):
        read_traffic(data, unnamed, 0.0)


def test_what_is_missing_is_nan_and_what_is_zero_may_be_a_reading() -> None:
    values = np.array([[0.0, np.nan, 5.0]])
    np.testing.assert_array_equal(mask(values, 0.0), [[np.nan, np.nan, 5.0]])
    np.testing.assert_array_equal(mask(values, None), [[0.0, np.nan, 5.0]])
    np.testing.assert_array_equal(mask(values, 5.0), [[0.0, np.nan, np.nan]])


def test_windows_made_beforehand(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    x, y = np.ones((4, 3, 2, 2)), np.full((4, 1, 2, 2), 7.0)
    x[0, 0, 0] = y[0, 0, 0] = 0
    np.savez(path, x=x, y=y)
    windows = read_windows(path, 0.0)
    assert windows.history.shape == (4, 3, 2, 2)
    assert windows.target.shape == (4, 1, 2)
    assert np.isnan(windows.history[0, 0, 0, 0])
    assert windows.history[0, 0, 0, 1] == 0  # the time of day is no reading
    assert np.isnan(windows.target[0, 0, 0])
    np.savez(path, x=x, y=y[:3])
    with pytest.raises(ArtefactError, match=r"x is 4 × 3 × 2 × 2 and y is 3 × 1 × 2 × 2"):
        read_windows(path, 0.0)
    np.savez(path, x=np.where(x == 0, np.nan, x), y=y)
    with pytest.raises(ArtefactError, match="x has NaN outside channel 0"):
        read_windows(path, 0.0)
    np.savez(path, x=x)
    with pytest.raises(ArtefactError, match="contains x, expected y"):
        read_windows(path, 0.0)
    path.unlink()
    with pytest.raises(ArtefactError, match=r"train\.npz"):
        read_windows(path, 0.0)
