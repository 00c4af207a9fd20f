"""Node 0's address as the others reach it."""

from __future__ import annotations

import socket

import pytest

from aorta.artefacts.records import ClockTriple, NodeInfo, ProfilerChoice
from aorta.runner import network


def node(
    index, *, host="a", network="m1 net:1", addresses=(), slurm_node=None, processes=1, machine="m1", **rest
):
    return NodeInfo(
        node_index=index,
        host=host,
        slurm_node=slurm_node,
        attempt=rest.get("attempt", 0),
        cpus_usable=rest.get("cpus_usable", 2),
        memory_limit_bytes=None,
        gpus=[],
        processes=processes,
        clock=ClockTriple(realtime_ns=1, monotonic_ns=1, boottime_ns=1),
        profiler=rest.get("profiler", ProfilerChoice(requested="none", resolved="none", reason="")),
        packages={},
        environment={},
        machine=machine,
        network=network,
        addresses=list(addresses),
    )


ROUTES = {"10.0.0.2": "10.0.0.1", "10.0.0.3": "10.0.0.1", "fd00::2": "fd00::1", "172.17.0.1": "172.17.0.1"}


def address(nodes, names=None):
    names = names or {}
    return network.master_address(nodes, resolver=lambda host: names.get(host, []), source=ROUTES.get)


def test_one_node_and_one_network_use_loopback():
    assert address([node(0)]) == "127.0.0.1"
    assert address([node(0), node(1)]) == "127.0.0.1"


def test_the_peers_name_leads_to_our_address():
    nodes = [node(0), node(1, host="b", network="m2 net:1")]
    assert address(nodes, {"b": ["10.0.0.2"]}) == "10.0.0.1"


def test_slurms_name_of_the_peer_goes_first():
    nodes = [node(0), node(1, host="b", slurm_node="n2", network="m2 net:1")]
    assert address(nodes, {"b": ["fd00::2"], "n2": ["10.0.0.3"]}) == "10.0.0.1"


def test_a_name_on_loopback_is_no_way_to_another_machine():
    nodes = [node(0), node(1, host="b", network="m2 net:1", addresses=["10.0.0.2"])]
    assert address(nodes, {"b": ["127.0.1.1"]}) == "10.0.0.1"


def test_namespaces_of_one_machine_do_not_share_loopback():
    nodes = [node(0), node(1, network="m1 net:2", addresses=["10.0.0.2"])]
    assert address(nodes, {"a": ["127.0.0.1"]}) == "10.0.0.1"


def test_an_address_that_both_have_is_passed_over():
    nodes = [
        node(0, addresses=["172.17.0.1", "10.0.0.1"]),
        node(1, host="b", network="m2 net:1", addresses=["172.17.0.1", "10.0.0.2"]),
    ]
    assert address(nodes) == "10.0.0.1"


def test_ipv6_where_there_is_nothing_else():
    assert address([node(0), node(1, host="b", network="m2", addresses=["fd00::2"])]) == "fd00::1"


def test_our_name_is_the_last_resort():
    assert address([node(0, host="me"), node(1, host="b", network="m2")]) == "me"


def test_unknown_networks_are_not_taken_for_one():
    nodes = [node(0, network=None), node(1, host="b", network=None)]
    assert address(nodes, {"b": ["10.0.0.2"]}) == "10.0.0.1"


def test_this_machine():
    assert network.source_towards("127.0.0.1") == "127.0.0.1"
    assert network.interface_towards("127.0.0.1") == "lo"
    assert network.interface_towards("name.invalid") is None
    assert network.network_id() == network.network_id()
    assert not [text for text in network.own_addresses() if text.startswith(("127.", "fe80"))]


@pytest.mark.parametrize("host", ["name.invalid", "", "x" * 300])
def test_a_name_without_an_address(host):
    assert [text for text in network.resolve(host) if not text.startswith(("127.", "::1"))] == []


def test_a_free_port_can_be_bound():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", network.free_port()))
