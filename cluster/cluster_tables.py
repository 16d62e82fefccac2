"""The tables of cluster.toml, as they are read; `config` checks and combines them."""

from __future__ import annotations

from dataclasses import dataclass

from tfe_bench.cluster.schema import declare_field
from tfe_bench.cluster.toml_file import (
    FLAG,
    INTEGER,
    TEXT,
    TEXT_OR_TEXTS,
    TomlTable,
    table_field,
    tables_field,
)


@dataclass(frozen=True)
class ClusterTable(TomlTable):
    """The table ``[cluster]``; the defaults are those of ClusterConfig."""

    name: str = declare_field(TEXT, "cluster")
    ring: int = declare_field(INTEGER, 64)
    fractional_bits: int = declare_field(INTEGER, 16)
    tls: bool = declare_field(FLAG, True)


@dataclass(frozen=True)
class PartyTable(TomlTable):
    """A table ``[[party]]``."""

    name: str = declare_field(TEXT)
    host: str = declare_field(TEXT)
    port: int = declare_field(INTEGER)
    certificate: tuple[str, ...] = declare_field(TEXT_OR_TEXTS, ())


@dataclass(frozen=True)
class ClientTable(TomlTable):
    """A table ``[[client]]``."""

    name: str = declare_field(TEXT)
    certificate: tuple[str, ...] = declare_field(TEXT_OR_TEXTS, ())


@dataclass(frozen=True)
class ClusterFile(TomlTable):
    """The tables of cluster.toml."""

    cluster: ClusterTable = table_field("cluster", ClusterTable)
    party: tuple[PartyTable, ...] = tables_field("party", PartyTable)
    client: tuple[ClientTable, ...] = tables_field("client", ClientTable)
