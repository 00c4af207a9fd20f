from __future__ import annotations

import msgspec

from aorta.artefacts.aggregate import Scaling, ScalingPoint
from aorta.artefacts.measured import Interval
from aorta.artefacts.replayed import DevicePop, Pop
from aorta.report import style
from aorta.report.efficiency import reasons, tree, tree_table
from aorta.report.overview import scaling_figure

# T = 10, U = [6, 6 | 6, 8] on two nodes, T_ideal = 9.
GOLDEN = Pop(
    ranks=4,
    step_ms=10.0,
    useful_ms=26.0,
    parallel=0.65,
    load_balance=0.8125,
    communication=0.8,
    serialisation=8 / 9,
    transfer=0.9,
    load_balance_inter_node=13 / 14,
    load_balance_intra_node=0.875,
    additive_load_balance=0.8125,
    additive_communication=0.8,
    additive_serialisation=None,
    additive_transfer=None,
)


def point(pop: Pop | None, **changes: object) -> ScalingPoint:
    made = ScalingPoint(
        scenario="2node",
        nodes=2,
        world_size=4,
        samples_per_s=100.0,
        speedup=1.0,
        efficiency=1.0,
        global_batch=8,
        pop=pop,
    )
    return msgspec.structs.replace(made, **changes)


def test_a_factor_is_the_product_of_those_right_below_it() -> None:
    rows = tree([point(GOLDEN, computation_scalability=1.0, global_efficiency=0.65)])
    for place, row in enumerate(rows):
        below = []
        for other in rows[place + 1 :]:
            if other.depth <= row.depth:
                break
            if other.depth == row.depth + 1:
                below.append(other.values[0] or 0.0)
        if below:
            product = 1.0
            for value in below:
                product *= value
            assert abs(product - (row.values[0] or 0.0)) < 1e-9, row.name


def test_absent_factors_are_dashes_and_zero_is_zero() -> None:
    bare = msgspec.structs.replace(GOLDEN, serialisation=None, transfer=0.0, reason="nothing was replayed")
    points = [point(bare), point(None, scenario="4node")]
    table = tree_table(points)
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["· · · serialisation efficiency (lowered by waiting)"] == ("—", "—")
    assert rows["· · · transfer efficiency (lowered by transferring data)"] == ("0.0 %", "—")
    assert rows["· parallel efficiency"] == ("65.0 %", "—")
    assert reasons(points) == ["2node: nothing was replayed"]


def test_devices_have_a_branch_where_there_are_any() -> None:
    device = DevicePop(parallel=0.5, load_balance=0.8, communication=0.9, orchestration=0.7)
    with_device = msgspec.structs.replace(GOLDEN, device=device)
    assert "orchestration efficiency (lowered by launching, loading)" in [
        row.name for row in tree([point(with_device)])
    ]
    assert not any("GPU" in row.name for row in tree([point(GOLDEN)]))


def test_numbers_that_disagree_are_said() -> None:
    assert reasons([point(GOLDEN, self_check="differs by 5 %")]) == ["2node: differs by 5 %"]


def test_no_factors_no_tree() -> None:
    assert tree([point(None)]) == []
    assert tree_table([point(None)]) is None


def test_the_figure_has_intervals_where_they_are_known_and_the_tree_below() -> None:
    known = Interval(low=0.9, high=1.1)
    points = [point(GOLDEN), point(GOLDEN, scenario="4node", world_size=8, efficiency_interval=known)]
    curve = Scaling(family="", reference="2node", label="weak", points=points)
    with style.styled():
        figure = scaling_figure(curve, shared=False)
        figure.draw_without_rendering()
    speed, efficiency, factors = figure.get_axes()
    assert len(speed.containers) == 0
    assert sum(type(item).__name__ == "ErrorbarContainer" for item in efficiency.containers) == 1
    assert "between nodes" in [label.get_text().strip() for label in factors.get_yticklabels()]
    with style.styled():
        assert len(scaling_figure(msgspec.structs.replace(curve, points=[]), shared=False).get_axes()) == 2
