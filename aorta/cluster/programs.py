"""Command lines and environment of the programs that a cluster is made of. All pure."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.cluster import config
from aorta.cluster.config import ClusterDir, Machine
from aorta.cluster.packages import SEARCH_PATH


def environment(folder: ClusterDir) -> dict[str, str]:
    """Environment of daemons and client commands: nothing of the caller's, so that no secret is passed on."""
    return {
        "PATH": SEARCH_PATH,
        "HOME": str(folder.root),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(folder.slurm_conf),
        # slurmdbd has no setting for the path of the database's socket; its client library takes this.
        "MYSQL_UNIX_PORT": str(folder.mysql_socket),
    }


def munged_argv(folder: ClusterDir) -> list[str]:
    """munged on our key and socket. `--force`: a checkout's parent folders may be writable by a group."""
    return [
        "munged", "--foreground", "--force",
        f"--socket={folder.munge_socket}",
        f"--key-file={folder.munge / 'munge.key'}",
        f"--seed-file={folder.munge / 'munge.seed'}",
        f"--pid-file={folder.run / 'munged.pid'}",
        f"--log-file={folder.log('munged')}",
    ]  # fmt: skip


def mariadb_init_argv(folder: ClusterDir, machine: Machine) -> list[str]:
    """An empty database whose only account is the system's user, known by its socket, without a password."""
    return [
        "mariadb-install-db", "--no-defaults", "--skip-test-db", "--force",
        f"--datadir={folder.mysql}", f"--user={machine.user}",
        "--auth-root-authentication-method=socket", f"--auth-root-socket-user={machine.user}",
    ]  # fmt: skip


def mariadbd_argv(folder: ClusterDir, machine: Machine) -> list[str]:
    """MariaDB on a Unix socket only; a cluster that is thrown away needs no sync at every commit."""
    return [
        "mariadbd", "--no-defaults", "--skip-networking",
        f"--datadir={folder.mysql}", f"--user={machine.user}", f"--socket={folder.mysql_socket}",
        f"--pid-file={folder.run / 'mariadbd.pid'}",
        "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=900", "--performance-schema=off",
    ]  # fmt: skip


def accounting_argvs(users: Sequence[str]) -> list[list[str]]:
    """Commands that make cluster, account and users known before slurmctld starts."""
    commands = [
        ["sacctmgr", "-i", "add", "cluster", config.CLUSTER_NAME],
        [
            "sacctmgr",
            "-i",
            "add",
            "account",
            config.ACCOUNT,
            f"Cluster={config.CLUSTER_NAME}",
            "Description=local",
        ],
    ]
    for user in users:
        commands.append(["sacctmgr", "-i", "add", "user", user, f"Account={config.ACCOUNT}"])
        commands.append(["sacctmgr", "-i", "modify", "user", user, "set", f"DefaultAccount={config.ACCOUNT}"])
    return commands
