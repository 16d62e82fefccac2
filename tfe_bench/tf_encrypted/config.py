"""Configurations by tf-encrypted's names: workers on this host, or those that operators run."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfe_bench.arrays import array as arrays
from tfe_bench.arrays.array import PrivateArray
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.errors import ConfigError, UsageError

# Length of a chain of pending operations at which they run.
_DEPTH = 150
_AT_ONCE = 128


@dataclass(frozen=True)
class Player:
    """A player of a program; here every player is the process that runs it.

    Attributes:
        index: in order of the names' first use.
        device_name: for programs that print it.
        host: of a remote configuration.
    """

    name: str
    index: int
    device_name: str
    host: str | None = None


class HeldTensor:
    """A tensor whose array's shares stay at the workers after the next job."""

    array: Any


class Config:
    """The workers of computations, and the players by name.

    Attributes:
        debug: for programs that set it; it has no effect, as nothing is traced in advance.
    """

    def __init__(self, debug_mode: bool = False) -> None:
        self.debug_mode = debug_mode
        self._cluster: Any = None
        # (in the order of the program, so that equal steps result in equal plans)
        self._waiting: weakref.WeakValueDictionary[int, HeldTensor] = weakref.WeakValueDictionary()
        self._counter = itertools.count()
        # Held nodes, by the nodes of which expressions were built.
        self._held: weakref.WeakKeyDictionary[ExpressionNode, ExpressionNode] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def players(self) -> list[Player]:
        """All players."""
        raise NotImplementedError

    def get_player(self, name_or_player: str | Player) -> Player | None:
        """Return a player by name."""
        if isinstance(name_or_player, Player):
            return name_or_player
        return next((p for p in self.players if p.name == name_or_player), None)

    def get_players(self, names: str | Sequence[str]) -> list[Player]:
        """Return players by their names, or by one text with commas."""
        wanted_names = (
            [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        )
        return [p for p in self.players if p.name in wanted_names]

    @property
    def debug(self) -> bool:
        """The debug mode that was set."""
        return self.debug_mode

    def set_debug_mode(self, debug_mode: bool) -> None:
        """Set the debug mode, which has no effect."""
        self.debug_mode = debug_mode

    # ---- the cluster

    @property
    def cluster(self) -> Any:
        """The workers, started or connected to at first use."""
        if self._cluster is None:
            self._cluster = self._open_cluster()
            atexit.register(self.close)
        return self._cluster

    def _open_cluster(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Close the cluster; workers of this host end."""
        cluster, self._cluster = self._cluster, None
        self._held.clear()
        if cluster is not None:
            atexit.unregister(self.close)
            cluster.close()

    def settle_later(self, held: HeldTensor) -> None:
        """Register an array whose shares the workers hold after the next job."""
        self._waiting[next(self._counter)] = held
        if held.array._node.depth > _DEPTH:
            self.run([])

    def run(self, revealed: Sequence[HeldTensor]) -> list[Any]:
        """Reveal arrays, and let the workers hold them and all registered arrays."""
        waiting = [h for h in self._waiting.values() if h.array.cluster is self._cluster]
        self._waiting.clear()
        not_held = [h for h in dict.fromkeys([*waiting, *revealed]) if not _is_held(h.array)]
        # (inputs separately, so that the same expression is the same plan in the next run)
        for are_inputs in (True, False):
            part = [h for h in not_held if (h.array._node.leaf is not None) == are_inputs]
            while len(part) > (0 if are_inputs else _AT_ONCE):
                self._run_job([], part[:_AT_ONCE])
                part = part[_AT_ONCE:]
        return self._run_job(revealed, part)

    def _run_job(self, revealed: Sequence[HeldTensor], held: Sequence[HeldTensor]) -> list[Any]:
        if not revealed and not held:
            return []
        arrays_by_role = [h.array for h in revealed], [h.array for h in held]
        # (tensors have no bounds: no range checks, as in tf-encrypted)
        values, held_arrays = arrays.run_arrays(*arrays_by_role, self._held, check=False)
        for tensor, array in zip(held, held_arrays, strict=True):
            self._held[tensor.array._node] = array._node
            tensor.array = array
        return values


def _is_held(array: PrivateArray) -> bool:
    return array._node.holds is not None


class LocalConfig(Config):
    """Three temporary workers on this host, with temporary keys and certificates.

    Args:
        player_names: players known in advance; others are added at first use.
    """

    def __init__(
        self,
        player_names: Sequence[str] | None = None,
        job_name: str = "localhost",
        auto_add_unknown_players: bool = True,
        debug_mode: bool = False,
    ) -> None:
        super().__init__(debug_mode)
        self._players: list[Player] = []
        self._auto_add = auto_add_unknown_players
        self._job = job_name
        for name in player_names or ():
            self.add_player(name)

    def add_player(self, name: str) -> Player:
        """Add a player."""
        player = Player(name, len(self._players), f"/job:{self._job}")
        self._players.append(player)
        return player

    @property
    def players(self) -> list[Player]:
        """All players."""
        return self._players

    def get_player(self, name_or_player: str | Player) -> Player | None:
        """Return a player by name; add an unknown one if permitted."""
        player = super().get_player(name_or_player)
        if player is None and self._auto_add and isinstance(name_or_player, str):
            return self.add_player(name_or_player)
        return player

    def _open_cluster(self) -> Any:
        from tfe_bench.clusters import LocalCluster

        cluster = LocalCluster()
        cluster.__enter__()
        return cluster


class RemoteConfig(Config):
    """Players by host, as in tf-encrypted's JSON files.

    Hosts of the loopback network stand for three workers that are started here.  Other hosts run
    their own workers, which cluster.toml lists with certificates: in the folder of the JSON
    file, or at the path in the environment variable TFE_BENCH_CLUSTER; TFE_BENCH_CLIENT is this
    client's name.
    """

    def __init__(
        self, hostmap: Mapping[str, str], job_name: str = "tfe", debug_mode: bool = False
    ) -> None:
        super().__init__(debug_mode)
        fits = isinstance(hostmap, Mapping) and all(
            isinstance(k, str) and isinstance(v, str) for k, v in hostmap.items()
        )
        if not fits or len(hostmap) < 3:
            raise ConfigError(
                "RemoteConfig takes a JSON object of names and host:port, 3 or more.",
                code="wrong-type",
                operation="hostmap",
            )
        self._folder = Path()
        self._players = [
            Player(name, i, f"/job:{job_name}/task:{i}", host)
            for i, (name, host) in enumerate(hostmap.items())
        ]

    @staticmethod
    def load(filename: str | Path) -> RemoteConfig:
        """Load a JSON file of names and hosts.

        Raises:
            ConfigError: the file does not exist, or has other contents.
        """
        try:
            config = RemoteConfig(json.loads(Path(filename).read_text()))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{filename} is not a JSON file of hosts: {error}.",
                code="invalid-json",
                received=str(filename),
            ) from None
        config._folder = Path(filename).absolute().parent
        return config

    def save(self, filename: str | Path) -> None:
        """Write the hosts to a JSON file."""
        Path(filename).write_text(json.dumps(self.hostmap))

    @property
    def hostmap(self) -> dict[str, str]:
        """Hosts by name."""
        return {p.name: p.host or "" for p in self._players}

    @property
    def hosts(self) -> list[str]:
        """The hosts."""
        return list(self.hostmap.values())

    @property
    def players(self) -> list[Player]:
        """All players."""
        return self._players

    def connect_servers(self) -> None:
        """Connect to the workers, or start them if all hosts are this one."""
        _ = self.cluster

    def start_server(self, name: str, start: bool = True) -> None:
        """Refuse: an operator starts a worker with its own key and policy."""
        raise UsageError(
            f"The worker of {name!r} is started by its operator: python -m tfe_bench worker. "
            "docs/cluster.md says how.",
            code="unsupported-operation",
            operation="start_server",
        )

    def _open_cluster(self) -> Any:
        from tfe_bench.cluster.addresses import is_loopback
        from tfe_bench.cluster.config import CLIENT_VARIABLE, CLUSTER_VARIABLE
        from tfe_bench.clusters import Client, LocalCluster

        cluster_file = os.environ.get(CLUSTER_VARIABLE)
        adjacent_file = self._folder / "cluster.toml"
        if cluster_file or adjacent_file.is_file():
            return Client.open(cluster_file or adjacent_file, os.environ.get(CLIENT_VARIABLE))
        if all(is_loopback(host.rpartition(":")[0]) for host in self.hosts):
            cluster = LocalCluster()
            cluster.__enter__()
            return cluster
        raise ConfigError(
            "Workers on other hosts need cluster.toml with certificates. Received: "
            f"{self.hosts[:3]} and no cluster.toml. Set {CLUSTER_VARIABLE} to it, or put it in "
            "the folder of the JSON file (docs/cluster.md).",
            code="cluster-file-missing",
            operation=CLUSTER_VARIABLE,
        )


_config: Config = LocalConfig()


def get_config() -> Config:
    """Return the current configuration."""
    return _config


def set_config(config: Config) -> None:
    """Set the current configuration; the workers of the previous one end."""
    global _config
    if not isinstance(config, Config):
        raise UsageError(
            f"set_config takes a configuration. Received: {type(config).__name__}.",
            code="wrong-type",
            operation="config",
            received=type(config).__name__,
        )
    if config is not _config:
        _config.close()
    _config = config
