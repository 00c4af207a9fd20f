"""What works, by what is there."""

from __future__ import annotations

from dataclasses import replace

from aorta.doctor.abilities import DEFAULT, NAMES, abilities
from aorta.doctor.records import Ability, Check, Examination

ALL = (
    "python packages torch collectives results tmp shm|open files|cpus|slurm programs|slurm controller|"
    "partitions|accounting|results on the nodes|gpus|torch devices|gpu sampling|nsys|rocprofv3|"
    "gpu metrics permission|test packages|cluster programs"
)


def everything(vendor: str = "nvidia") -> dict[str, Check]:
    names = [
        name for part in ALL.split("|") for name in (part.split() if part.startswith("python") else [part])
    ]
    found = {name: Check(name, "ok", "there") for name in names}
    found["gpus"] = replace(found["gpus"], value={"vendor": vendor})
    return found


def without(*names: str, vendor: str = "nvidia") -> dict[str, Ability]:
    found = everything(vendor)
    for name in names:
        found[name] = Check(name, "missing", "absent", f"install {name}")
    return {ability.name: ability for ability in abilities(list(found.values()))}


def noted(name: str) -> dict[str, Ability]:
    found = everything()
    found[name] = Check(name, "note", "small", "make it larger")
    return {ability.name: ability for ability in abilities(list(found.values()))}


def ok(found: dict[str, Ability], *needed: str) -> bool:
    return Examination("here", (), tuple(found.values()), needed or DEFAULT).ok


def test_machine_with_everything_does_everything_of_its_vendor() -> None:
    assert {name for name, able in without().items() if able.works != "yes"} == {"rocprofv3"}
    assert {name for name, able in without(vendor="amd").items() if able.works != "yes"} == {"nsys"}


def test_laptop_without_cluster_and_gpu_profiles_on_its_cpu() -> None:
    found = without("slurm programs", "slurm controller", "partitions", "gpus", "nsys", "rocprofv3")
    assert [found[name].works for name in ("analyze", "profile", "submit", "gpu training")] == [
        "yes", "yes", "no", "no",
    ]  # fmt: skip
    assert ok(found)
    assert not ok(found, "submit")


def test_without_torch_runs_are_analysed_and_nothing_is_trained() -> None:
    found = without("torch", "torch devices", "collectives")
    assert found["analyze"].works == "yes"
    assert found["profile"].works == found["submit"].works == "no"
    assert found["profile"].todo == ("install torch", "install collectives")
    assert not ok(found)


def test_either_here_or_by_slurm_is_enough() -> None:
    assert ok(without("results on the nodes"))
    assert not ok(without("results"))


def test_without_accounting_submission_works_in_part() -> None:
    able = without("accounting")["submit"]
    assert (able.works, able.reasons) == ("in part", ("accounting: absent",))
    assert ok(without("accounting"), "submit")


def test_full_temporary_folder_limits_and_does_not_refuse() -> None:
    assert noted("tmp")["nsys"].works == "in part"
    assert noted("tmp")["profile"].todo == ("make it larger",)
    assert noted("locale")["profile"].works == "yes"


def test_torch_that_sees_no_gpu_trains_on_none() -> None:
    assert noted("torch devices")["gpu training"].works == "no"
    assert without()["gpu training"].works == "yes"


def test_nsys_without_gpu_traces_calls_only() -> None:
    found = everything()
    found["gpus"] = Check("gpus", "missing", "no GPU", value={"count": 0})
    able = {ability.name: ability for ability in abilities(list(found.values()))}["nsys"]
    assert able.works == "in part"


def test_nothing_looked_at_works_nowhere_and_says_so() -> None:
    found = abilities([])
    assert [ability.name for ability in found] == list(NAMES)
    assert {ability.works for ability in found} == {"no"}
    assert "packages: was not checked" in found[0].reasons
