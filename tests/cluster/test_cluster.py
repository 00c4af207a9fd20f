from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.artefacts.io import write_json
from aorta.cluster import cluster, config, daemons, network, packages, programs
from aorta.cluster.cluster import ClusterStatus, NodeState
from aorta.cluster.config import ClusterDir, ClusterError, ClusterSettings, Machine
from aorta.cluster.daemons import DaemonProcess
from aorta.cluster.folders import ClusterRecord
from aorta.commands.cluster import command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterDir:
    # No test here may meet the network of a cluster that runs on this machine.
    monkeypatch.setattr(cluster, "_network_is_ours", lambda _: False)
    short = tmp_path / "c"
    if len(str(short)) > 80:
        pytest.skip(f"{short} is too long for a cluster")
    return ClusterDir(short)


def here(name: str) -> DaemonProcess:
    process = daemons.identify(name, os.getpid())
    assert process is not None
    return process


GONE = DaemonProcess("slurmctld", 1, 1, "another boot")
IDLE = NodeState("node1", "idle", "127.0.0.1")


def test_up_needs_every_daemon_and_every_node() -> None:
    record = ClusterRecord(ClusterSettings(1, netns=False), [here("slurmctld")])
    assert ClusterStatus(record, [IDLE]).up
    assert ClusterStatus(record, [NodeState("node1", "mixed", "127.0.0.1")]).up
    assert not ClusterStatus(record, []).up
    assert not ClusterStatus(record, [NodeState("node1", "idle*", "127.0.0.1")]).up
    assert not ClusterStatus(record, [NodeState("node1", "down", "127.0.0.1")]).up
    assert not ClusterStatus(
        ClusterRecord(ClusterSettings(1, netns=False), [here("munged"), GONE]), [IDLE]
    ).up
    assert not ClusterStatus(ClusterRecord(ClusterSettings(1, netns=False)), [IDLE]).up
    assert not ClusterStatus(None, []).up


def test_no_cluster(folder: ClusterDir) -> None:
    assert cluster.status(folder) == ClusterStatus(None, [])
    assert not cluster.down(folder, keep_logs=False)


def test_record_of_an_earlier_boot_is_stale(folder: ClusterDir) -> None:
    write_json(folder.record, ClusterRecord(ClusterSettings(), [GONE]))
    now = cluster.status(folder)
    assert not now.up
    assert now.problem is not None
    assert "no daemon is running" in now.problem


@pytest.mark.parametrize(
    "record",
    ["{", "[]", "{}", '{"settings": {}, "processes": []}', '{"settings": {}, "made_by": "aorta"}',
     '{"settings": {"nodes": "four"}, "made_by": "aorta cluster"}', '{"made_by": "aorta cluster"}'],
)  # fmt: skip
def test_a_folder_whose_record_is_not_a_cluster_s_is_never_touched(folder: ClusterDir, record: str) -> None:
    folder.logs.mkdir(parents=True)
    folder.log("munged").write_text("mine")
    folder.record.write_text(record)
    refuses(folder, str(folder.record))
    assert folder.record.read_text() == record
    assert folder.log("munged").read_text() == "mine"


def test_a_broken_record_is_a_problem(folder: ClusterDir) -> None:
    folder.root.mkdir()
    folder.record.write_text("{")
    now = cluster.status(folder)
    assert not now.up
    assert str(folder.record) in (now.problem or "")


def refuses(folder: ClusterDir, reason: str) -> None:
    """Both `up` and `down` refuse the folder and name why."""
    for action in (lambda: cluster.down(folder, False), lambda: cluster.up(folder, ClusterSettings(), False)):
        with pytest.raises(ClusterError) as refused:
            action()
        assert "is not the folder of a cluster" in str(refused.value)
        assert reason in str(refused.value)


@pytest.mark.parametrize("root", [True, False])
def test_another_users_cluster_is_left_and_its_use_is_told(
    folder: ClusterDir, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    folder.root.mkdir()
    write_json(folder.record, ClusterRecord(ClusterSettings()))
    owner = 0 if root else 4321
    if os.geteuid() == 0:
        os.chown(folder.record, owner, -1)
    elif owner != os.geteuid():
        pytest.skip("only root can give a file away")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    for action in (lambda: cluster.down(folder, False), lambda: cluster.up(folder, ClusterSettings(), False)):
        with pytest.raises(ClusterError) as refused:
            action()
        assert f"is the cluster of {'root' if root else 'user 4321'}" in refused.value.message
        assert ("sudo make cluster-down" if root else "ask user 4321") in (refused.value.hint or "")
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    assert cluster.down(folder, False)


def test_logs_without_a_record_are_not_a_cluster_s(folder: ClusterDir) -> None:
    """A training's folder of logs looks like what `--keep-logs` leaves, apart from the record."""
    folder.logs.mkdir(parents=True)
    (folder.logs / "train.log").write_text("mine")
    refuses(folder, "cluster.json: missing")
    assert (folder.logs / "train.log").read_text() == "mine"


@pytest.mark.parametrize("keep_logs", [False, True])
def test_down_removes_what_a_cluster_makes_and_names_the_rest(folder: ClusterDir, keep_logs: bool) -> None:
    write_json(folder.record, ClusterRecord(ClusterSettings()))
    folder.logs.mkdir()
    folder.mysql.mkdir()
    (folder.mysql / "ibdata1").write_text("")
    folder.log("slurmctld").write_text("ours")
    mine = [folder.root / "thesis.tex", folder.logs / "train.log", folder.logs / "node1.log" / "a"]
    mine[2].parent.mkdir()
    for path in mine:
        path.write_text("mine")
    with pytest.raises(ClusterError, match=r"aorta did not make thesis.tex, logs/node1.log, logs/train.log"):
        cluster.down(folder, keep_logs)
    assert [path.read_text() for path in mine] == ["mine"] * 3
    assert not folder.mysql.exists()
    assert folder.log("slurmctld").exists() == keep_logs


def test_down_removes_links_and_not_what_they_lead_to(folder: ClusterDir, tmp_path: Path) -> None:
    write_json(folder.record, ClusterRecord(ClusterSettings()))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "munged.log").write_text("mine")
    for link in (folder.logs, folder.mysql, folder.hosts):
        link.symlink_to(mine)
    assert cluster.down(folder, keep_logs=False)
    assert [path.name for path in mine.iterdir()] == ["munged.log"]
    assert not folder.root.exists()


def test_down_ends_daemons_that_the_record_does_not_know(folder: ClusterDir, tmp_path: Path) -> None:
    write_json(folder.record, ClusterRecord(ClusterSettings()))
    lost = daemons.start("munged", ["sleep", "60"], programs.environment(folder), tmp_path / "log")
    job = daemons.start(
        "job",
        ["sleep", "60"],
        {"PATH": os.environ["PATH"], "SLURM_CONF": str(folder.slurm_conf), "SLURM_JOB_ID": "5",
         "SLURM_TASK_PID": "7", "SLURMD_NODENAME": "node1"},
        tmp_path / "log",
    )  # fmt: skip
    shell = daemons.start(
        "shell",
        ["sleep", "60"],
        # A user asks about a job, by its id in a variable.
        {"PATH": os.environ["PATH"], "SLURM_CONF": str(folder.slurm_conf), "SLURM_JOB_ID": "5"},
        tmp_path / "log",
    )
    try:
        running = [lost, job, shell]
        daemons.wait_until(
            "they run sleep",
            lambda: all(Path(f"/proc/{item.pid}/comm").read_text().strip() == "sleep" for item in running),
            running,
            lambda _: tmp_path / "log",
            60,
        )
        assert cluster.down(folder, keep_logs=False)
        assert [lost.alive, job.alive, shell.alive] == [False, False, True]
    finally:
        daemons.stop([lost, job, shell])


def test_down_keeps_the_logs_alone(folder: ClusterDir) -> None:
    write_json(folder.record, ClusterRecord(ClusterSettings()))
    folder.logs.mkdir()
    folder.log("slurmctld").write_text("why")
    folder.mysql.mkdir()
    assert cluster.down(folder, keep_logs=True)
    assert sorted(path.name for path in folder.root.iterdir()) == ["cluster.json", "logs"]
    assert cluster.down(folder, keep_logs=False)
    assert not folder.root.exists()


def test_a_folder_with_other_things_is_never_touched(folder: ClusterDir) -> None:
    folder.root.mkdir()
    mine = folder.root / "thesis.tex"
    mine.write_text("mine")
    for action in (lambda: cluster.down(folder, False), lambda: cluster.up(folder, ClusterSettings(), False)):
        with pytest.raises(ClusterError, match="is not the folder of a cluster"):
            action()
    assert mine.read_text() == "mine"


def test_failed_start_is_undone_and_says_why(folder: ClusterDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "require", lambda *_: [])
    # Those of a cluster that runs on this machine.
    monkeypatch.setattr(cluster, "_refuse_taken_ports", lambda _: None)
    monkeypatch.setattr(cluster, "this_machine", lambda: Machine("box", "root", 1000, (22, 5)))
    monkeypatch.setattr(programs, "mariadb_init_argv", lambda folder, machine: ["true"])
    monkeypatch.setattr(programs, "mariadbd_argv", lambda folder, machine: ["sleep", "60"])
    munged = ["sh", "-c", "echo bad key >&2; exit 1"]
    monkeypatch.setattr(programs, "munged_argv", lambda folder: munged)
    with pytest.raises(ClusterError, match=r"(?s)munged ended.*bad key"):
        cluster.up(folder, ClusterSettings(netns=False), install=False)
    assert sorted(path.name for path in folder.root.iterdir()) == ["cluster.json", "logs"]
    assert daemons.with_environment({"SLURM_CONF": str(folder.slurm_conf)}) == []


def test_network_of_another_folder_is_refused(folder: ClusterDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "require", lambda *_: [])
    monkeypatch.setattr(network, "owner", lambda: Path("/elsewhere"))
    with pytest.raises(ClusterError) as refused:
        cluster.up(folder, ClusterSettings(netns=True), install=False)
    assert refused.value.hint == "run `aorta cluster down --dir /elsewhere` first"
    assert not folder.root.exists()


@pytest.mark.parametrize("netns", [False, True])
def test_a_taken_port_is_named(folder: ClusterDir, monkeypatch: pytest.MonkeyPatch, netns: bool) -> None:
    monkeypatch.setattr(packages, "require", lambda *_: [])
    monkeypatch.setattr(network, "owner", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(config, "CONTROLLER_PORT", 0)  # any: a cluster may run on this machine
        monkeypatch.setattr(config, "ACCOUNTING_PORT", port)
        with pytest.raises(ClusterError, match=rf"port {port}, which slurmdbd needs, is in use"):
            cluster.up(folder, ClusterSettings(1, netns=netns), install=False)
    assert not folder.root.exists()


def test_private_files_are_private(folder: ClusterDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "mariadb_init_argv", lambda folder, machine: ["true"])
    cluster._write(folder, ClusterSettings(), Machine("box", "root", 1000, (24, 11)))
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.root.iterdir()}
    assert (modes["slurmdbd.conf"], modes["munge"], modes["mysql"]) == (0o600, 0o700, 0o700)
    assert (folder.munge / "munge.key").stat().st_mode & 0o777 == 0o600
    assert len((folder.munge / "munge.key").read_bytes()) == 128
    assert folder.cgroup_conf.read_text() == "CgroupPlugin=disabled\n"


def test_namespaces_are_chosen_where_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(network, "unusable", lambda: None)
    assert cluster.choose_netns(None) == (True, None)
    assert cluster.choose_netns(False) == (False, None)
    monkeypatch.setattr(network, "unusable", lambda: "not permitted")
    assert cluster.choose_netns(None) == (False, "not permitted")
    with pytest.raises(ClusterError, match="not permitted"):
        cluster.choose_netns(True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cluster.choose_netns(None) == (False, "only root can make network namespaces")


def test_daemons_get_nothing_of_the_caller_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    names = set(programs.environment(ClusterDir(Path("/srv/c"))))
    assert names == {"PATH", "HOME", "LANG", "SLURM_CONF", "MYSQL_UNIX_PORT"}


def test_accounting_knows_every_user() -> None:
    lines = [" ".join(argv) for argv in programs.accounting_argvs(["root", "ada"])]
    assert lines == [
        "sacctmgr -i add cluster aorta",
        "sacctmgr -i add account aorta Cluster=aorta Description=local",
        "sacctmgr -i add user root Account=aorta",
        "sacctmgr -i modify user root set DefaultAccount=aorta",
        "sacctmgr -i add user ada Account=aorta",
        "sacctmgr -i modify user ada set DefaultAccount=aorta",
    ]


def test_database_has_no_network_and_no_other_configuration() -> None:
    argv = programs.mariadbd_argv(ClusterDir(Path("/srv/c")), Machine("box", "ada", 1, (22, 5)))
    assert {"--no-defaults", "--skip-networking", "--user=ada", "--socket=/srv/c/run/mysql.sock"} <= set(argv)


def test_status_command_without_a_cluster_fails(folder: ClusterDir) -> None:
    done = CliRunner().invoke(command, ["status", "--dir", str(folder.root)], standalone_mode=False)
    assert done.return_value == 1
    assert "start one with `aorta cluster up`" in done.output


def test_status_command_shows_daemons(folder: ClusterDir, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ClusterRecord(ClusterSettings(1, netns=False), [here("slurmctld"), here("node1")])
    monkeypatch.setattr(cluster, "status", lambda _: ClusterStatus(record, [IDLE]))
    done = CliRunner().invoke(command, ["status", "--dir", str(folder.root)], standalone_mode=False)
    assert done.return_value == 0
    assert "slurmctld" in done.output
    assert "idle" in done.output


def test_env_command_quotes_and_needs_a_cluster(folder: ClusterDir) -> None:
    folder.root.mkdir()
    arguments = ["env", "--dir", str(folder.root)]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert isinstance(done.exception, ClusterError)
    folder.slurm_conf.write_text("")
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert done.output == f"export SLURM_CONF={folder.slurm_conf}\n"
