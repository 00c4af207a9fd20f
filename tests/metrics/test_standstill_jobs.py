"""Who holds a job up, in simulated jobs whose guilty ranks are known: many groups, faults and forms."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from aorta.diagnosis.hang import hang_of_recordings
from aorta.readers.flight import decode, read
from tests.support.flight_jobs import FILE, LINE, Job, Op

WORLD, TENSOR = 8, 2
LAYERS = 2


def groups():
    """Tensor, data and pipeline groups of eight ranks: tensor pairs, two replicas, two stages."""
    found = {}
    for first in range(0, WORLD, TENSOR):
        found[f"{1 + first // TENSOR}"] = ("TENSOR", [first, first + 1])
    for rank in range(4):
        place = (rank // 2) * 4 + rank % 2
        found[f"{10 + rank}"] = ("DATA", [place, place + 2])
    for rank in range(4):
        found[f"{20 + rank}"] = ("PIPE", [rank, rank + 4])
    return found


def of(rank, about, known):
    return next(name for name, (desc, members) in known.items() if desc == about and rank in members)


def programs(known, steps, *, batched):
    """Steps of a pipeline with tensor parallelism, gradients of replicas, and a norm over all ranks."""
    found = []
    for rank in range(WORLD):
        calls, first_stage = [], rank < 4
        tensor, data, pipe = (of(rank, about, known) for about in ("TENSOR", "DATA", "PIPE"))
        peer = 1 if first_stage else 0
        for step in range(steps):
            layers = [{"group": tensor, "name": "all_reduce", "size": 4 + layer} for layer in range(LAYERS)]
            batch = {"batch": step} if batched else {}
            if batched:
                exchange = [
                    {"group": pipe, "name": "send", "peer": peer, **batch},
                    {"group": pipe, "name": "recv", "peer": peer, **batch},
                ]
                calls += layers + exchange
            elif first_stage:
                calls += [*layers, {"group": pipe, "name": "send", "peer": peer}]
                calls += [{"group": pipe, "name": "recv", "peer": peer}, *layers]
            else:
                calls += [{"group": pipe, "name": "recv", "peer": peer}, *layers, *layers]
                calls += [{"group": pipe, "name": "send", "peer": peer}]
            calls += [{"group": data, "name": "_reduce_scatter_base", "size": 64}]
            calls += [{"group": data, "name": "_all_gather_base", "size": 32}]
            calls += [{"group": "0", "name": "all_reduce", "size": 1}]
        found.append(calls)
    return found


def job(seed, *, steps=4, batched=None):
    chance = random.Random(seed)
    known = groups()
    made = Job(
        WORLD, known, programs(known, steps, batched=chance.random() < 0.5 if batched is None else batched)
    )
    for rank in made.ranks:
        rank.ahead = chance.choice([1, 2, 5, 12])
    return made, chance


def stop(rank, chance):
    """Let a host stop in the second half of its program; a batch is enqueued as a whole."""
    place = chance.randrange(len(rank.program) // 2, len(rank.program))
    batch = rank.program[place].batch
    while batch is not None and rank.program[place - 1].batch == batch:
        place -= 1
    rank.stops_at = place


def form(chance, **fixed):
    """A way of dumping: format, timing, size of the buffer."""
    chosen = {
        "form": chance.choice(["pickle", "json"]),
        "timing": chance.random() < 0.5,
        "buffer": chance.choice([12, 20, 2000]),
        "status": chance.random() < 0.7,
    }
    return chosen | fixed


def found(made, **options):
    recordings = [decode(data, f"_dump_{rank}", rank) for rank, data in made.dumps(**options).items()]
    return hang_of_recordings(recordings)


def said(hang):
    return None if hang is None else (hang.kind, [item.rank for item in hang.ranks])


@pytest.mark.parametrize("seed", range(24))
def test_a_host_that_stops(seed):
    made, chance = job(seed)
    guilty = chance.randrange(WORLD)
    stop(made.ranks[guilty], chance)
    hang = found(made.run(), **form(chance))
    assert said(hang) == ("host_stuck", [guilty])
    assert guilty not in hang.waiting_ranks


@pytest.mark.parametrize("seed", range(10))
def test_a_first_call_that_is_missing(seed):
    made, chance = job(seed)
    guilty = chance.randrange(WORLD)
    made.ranks[guilty].stops_at = 0
    assert said(found(made.run(), **form(chance, buffer=2000))) == ("host_stuck", [guilty])


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("other_size", {"size": 7}),
        ("other_dtype", {"dtype": "Half"}),
        ("other_collective", {"name": "broadcast"}),
    ],
)
def test_a_call_that_differs(seed, kind, change):
    made, chance = job(seed)
    guilty = chance.randrange(WORLD)
    program = made.ranks[guilty].program
    places = [place for place, op in enumerate(program) if not op.p2p and place > 3 * len(program) // 5]
    op = program[chance.choice(places)]
    for name, value in change.items():
        setattr(op, name, value)
    assert said(found(made.run(), **form(chance, buffer=2000))) == (kind, [guilty])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["all_reduce", "send", "recv"])
def test_the_rank_that_leaves_a_call_out_differs_from_its_like(seed, name):
    made, chance = job(seed, batched=False)
    guilty = chance.randrange(WORLD)
    program = made.ranks[guilty].program
    places = [place for place, op in enumerate(program) if op.name == name and place > len(program) // 2]
    del program[chance.choice(places)]
    hang = found(made.run(), **form(chance, buffer=2000))
    assert hang is not None
    assert [item.rank for item in hang.ranks] == [guilty]


@pytest.mark.parametrize("seed", range(8))
def test_calls_of_two_groups_in_another_order_than_its_like(seed):
    made, chance = job(seed, batched=False)
    guilty = chance.randrange(WORLD)
    program = made.ranks[guilty].program
    half = len(program) // 2
    places = [place for place in range(half, len(program) - 1) if program[place + 1].group == "0"]
    place = chance.choice(places)
    program[place : place + 2] = reversed(program[place : place + 2])
    assert said(found(made.run(), **form(chance, buffer=2000))) == ("other_collective", [guilty])


@pytest.mark.parametrize(
    ("kind", "change"), [("other_size", {"size": 7}), ("other_dtype", {"dtype": "Half"})]
)
@pytest.mark.parametrize("guilty", range(4))
def test_groups_of_one_description_tell_which_of_two_ranks_differs(kind, change, guilty):
    pairs = {"1": ("DATA", [0, 1]), "2": ("DATA", [2, 3])}
    exchanged = [{"group": "1", "name": "all_reduce", "size": 4}]
    made = Job(4, pairs, [exchanged, exchanged, *[[exchanged[0] | {"group": "2"}]] * 2])
    for name, value in change.items():
        setattr(made.ranks[guilty].program[0], name, value)
    assert said(found(made.run())) == (kind, [guilty])
    # Pairs of another description say nothing.
    made.groups["1"], made.groups["2"] = ("ONE", [0, 1]), ("TWO", [2, 3])
    assert said(found(made)) == (kind, [0, 1] if guilty < 2 else [2, 3])


@pytest.mark.parametrize("seed", range(15))
def test_a_gpu_that_stops_where_the_others_end(seed):
    made, chance = job(seed)
    guilty = chance.randrange(WORLD)
    program = made.ranks[guilty].program
    places = [place for place, op in enumerate(program) if not op.p2p and place > len(program) // 2]
    stuck = program[chance.choice(places)]
    made.run_until_stuck(stuck)
    assert said(found(made, **form(chance))) == ("gpu_stuck", [guilty])


@pytest.mark.parametrize("seed", range(12))
def test_a_gpu_that_does_not_come_to_a_call_where_starts_are_recorded(seed):
    made, chance = job(seed)
    guilty = chance.randrange(WORLD)
    program = made.ranks[guilty].program
    places = [place for place, op in enumerate(program) if not op.p2p and place > len(program) // 2]
    program[chance.choice(places)].stuck = True
    assert said(found(made.run(), **form(chance, timing=True, buffer=2000))) == ("gpu_stuck", [guilty])


@pytest.mark.parametrize("seed", range(12))
def test_a_rank_that_died_and_left_no_dump(seed):
    made, chance = job(seed)
    guilty = chance.randrange(WORLD)
    stop(made.ranks[guilty], chance)
    assert said(found(made.run(), lost=(guilty,), **form(chance))) == ("dead_peer", [guilty])


def test_ranks_that_left_no_dump_beside_a_dead_one_left_no_sign_either():
    made = Job(8, {"1": ("PAIR", [5, 6])}, [[{"group": "0", "name": "all_reduce"}] * 4] * 8)
    made.ranks[2].stops_at = 3
    made.run()
    assert said(found(made, lost=(2, 5))) == ("dead_peer", [2, 5])
    # Where another rank is known to be the cause, a missing dump says nothing.
    assert said(found(made, lost=(5,))) == ("host_stuck", [2])


@pytest.mark.parametrize("seed", range(12))
def test_a_dump_of_an_innocent_rank_that_is_missing(seed):
    made, chance = job(seed, batched=False)
    guilty, lost = chance.sample(range(WORLD), 2)
    stop(made.ranks[guilty], chance)
    hang = found(made.run(), lost=(lost,), **form(chance))
    # Where the missing rank alone waited for the guilty one, it is the last that is seen of the chain.
    assert said(hang) in (("host_stuck", [guilty]), ("dead_peer", [lost]))
    direct = any(
        guilty in made.groups[call.group][1]
        for r in made.ranks
        if r.rank not in (guilty, lost) and (call := r.head())
    )
    assert not direct or said(hang) == ("host_stuck", [guilty])


@pytest.mark.parametrize("seed", range(12))
def test_a_job_whose_calls_have_all_ended_is_no_standstill(seed):
    made, chance = job(seed)
    assert said(found(made.run(), **form(chance))) is None


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("guilty", [None, 2])
def test_gloo_retires_calls_and_describes_no_group(form, guilty):
    calls = [{"group": "0", "name": "all_reduce", "size": 4}, {"group": "0", "name": "barrier"}] * 3
    made = Job(4, {}, [calls] * 4)
    if guilty is not None:
        made.ranks[guilty].stops_at = 4
    hang = found(made.run(), form=form, backend="gloo", config=False)
    assert said(hang) == (None if guilty is None else ("host_stuck", [guilty]))


def test_two_hosts_that_stop_in_different_groups_are_both_named():
    made, _ = job(1, batched=False)
    for guilty in (2, 5):
        made.ranks[guilty].stops_at = 20
    assert said(found(made.run())) == ("host_stuck", [2, 5])


def test_calls_of_two_groups_in_another_order_are_a_deadlock():
    first, second = ({"group": name, "name": "all_reduce"} for name in ("1", "2"))
    pairs = {"1": ("ONE", [0, 1]), "2": ("TWO", [0, 1])}
    made = Job(2, pairs, [[first, second], [second, first]])
    assert said(found(made.run())) == ("deadlock", [0, 1])


def test_two_sends_to_each_other_are_a_deadlock():
    pair = {"1": ("PIPE", [0, 1])}
    made = Job(
        2, pair, [[{"group": "1", "name": "send", "peer": 1}], [{"group": "1", "name": "send", "peer": 0}]]
    )
    assert said(found(made.run())) == ("deadlock", [0, 1])


def test_a_call_that_all_ranks_made_and_none_ends_has_no_guilty_rank():
    made = Job(2, {}, [[{"group": "0", "name": "all_reduce", "stuck": True}]] * 2)
    assert said(found(made.run())) == ("transfer_stuck", [])


def test_one_dump_of_eight_names_nobody():
    made, chance = job(3)
    stop(made.ranks[5], chance)
    assert found(made.run(), lost=tuple(range(1, WORLD))) is None


def test_shapes_with_as_many_elements_are_no_other_size():
    calls = [{"group": "0", "name": "all_reduce", "size": 8}] * 3
    made = Job(2, {}, [calls, calls])
    made.ranks[1].stops_at = 2
    recordings = [decode(data, "d", rank) for rank, data in made.run().dumps().items()]
    flat = [replace(call, sizes=((16,),)) for call in recordings[1].calls]
    hang = hang_of_recordings([recordings[0], replace(recordings[1], calls=tuple(flat))])
    assert said(hang) == ("host_stuck", [1])


@pytest.mark.parametrize(
    ("open_s", "differs", "kind"),
    [(0.5, False, None), (600.0, False, "host_stuck"), (0.5, True, "other_size")],
)
def test_a_call_that_is_open_for_a_moment_is_no_standstill(tmp_path, open_s, differs, kind):
    made = Job(2, {}, [[{"group": "0", "name": "all_reduce"}] * 3] * 2)
    if differs:
        made.ranks[1].program[2].size = 7
    else:
        made.ranks[1].stops_at = 2
    for rank, data in made.run().dumps().items():
        path = tmp_path / f"dump_{rank}"
        path.write_bytes(data)
        written = made.clock / 1e9 + open_s
        os.utime(path, (written, written))
    hang = hang_of_recordings([read(path) for path in sorted(tmp_path.iterdir())])
    assert (hang.kind if hang else None) == kind


def test_the_line_of_a_guilty_rank_is_its_own():
    calls = [{"group": "0", "name": "all_reduce", "size": 4}] * 5
    made = Job(3, {}, [calls] * 3)
    made.ranks[1].program[4].size = 7
    hang = found(made.run())
    assert said(hang) == ("other_size", [1])
    assert (hang.where.function, hang.where.file, hang.where.line) == ("step", FILE, LINE + 4)


@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize("world", [2, 4])
def test_a_barrier_of_another_group_amid_gradients_is_another_collective(world, config):
    gradients = [{"group": "0", "name": "all_reduce", "size": 4 + number % 2} for number in range(8)]
    made = Job(world, {"1": ("SECOND", list(range(world)))}, [gradients] * world)
    made.ranks[1].program[6] = Op("1", "barrier")
    assert said(found(made.run(), config=config)) == ("other_collective", [1])
