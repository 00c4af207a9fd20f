"""Counters of ports: units of four bytes, and nothing where there is no port."""

from __future__ import annotations

from aorta.monitors.infiniband import Ports


def port(sysfs, name, sent, received):
    folder = sysfs / "class/infiniband" / name / "ports/1/counters"
    folder.mkdir(parents=True)
    (folder / "port_xmit_data").write_text(f"{sent}\n")
    (folder / "port_rcv_data").write_text(f"{received}\n")


def test_all_ports_together_in_bytes(tmp_path):
    port(tmp_path, "mlx5_0", 10, 3)
    port(tmp_path, "mlx5_1", 1, 0)
    ports = Ports(tmp_path)
    assert ports.bytes() == (4 * (10 + 1), 4 * 3)
    ports.close()


def test_a_machine_without_a_port_has_no_value_and_an_idle_port_has_zero(tmp_path):
    assert Ports(tmp_path).bytes() == (None, None)
    port(tmp_path, "mlx5_0", 0, 0)
    assert Ports(tmp_path).bytes() == (0, 0)


def test_a_counter_that_is_no_number_is_no_value(tmp_path):
    port(tmp_path, "mlx5_0", "busy", 2)
    assert Ports(tmp_path).bytes() == (None, 8)
