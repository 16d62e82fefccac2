"""``python -m tfe_bench certs``: keys, certificates, and the files of a trial cluster."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tfe_bench.cli import common, listing
from tfe_bench.cluster import tls
from tfe_bench.cluster.addresses import parse_worker_address
from tfe_bench.cluster.config import (
    ClientConfig,
    ClusterConfig,
    PartyConfig,
    member_certificate_file,
)
from tfe_bench.cluster.files import write_public_file, write_secret_file
from tfe_bench.errors import ConfigError, UsageError

_WORKER_TOML = """\
# Only this party's operator reads this file; the other workers never see it.
# A trial permits its clients everything: list programs and reveals before using real data.
party = {party}
key = "party{party}.key"
allow_programs = ["*"]
models = "models{party}"   # the folder where deployed models' shares are kept
receipts = "receipts{party}"   # the folder where signed receipts of jobs are kept

[[reveal]]
program = "*"
to = [{clients}]

[limits]
max_elements = 67108864   # per input
job_seconds = 3600
"""


def add_cert_options(parser: argparse.ArgumentParser) -> None:
    """Add the modes ``party``, ``client``, ``show``, ``renew`` and ``all``."""
    modes = parser.add_subparsers(dest="mode", required=True, metavar="party|client|show|renew|all")

    party = modes.add_parser("party", help="make the key and certificate of a worker")
    party.add_argument(
        "--party", type=int, choices=(0, 1, 2), required=True, help="index of the worker: 0, 1 or 2"
    )

    client = modes.add_parser(
        "client", help="make the key and certificate of a client, who submits jobs"
    )
    client.add_argument(
        "--name", required=True, help="name of the client in cluster.toml, such as analyst"
    )

    show = modes.add_parser(
        "show",
        help="print the name, fingerprint and end date of a certificate",
        description="Prints the name, fingerprint and end date of a certificate that you received. "
        "Compare the fingerprint with its owner over another channel.",
    )
    show.add_argument("certificate", type=Path, metavar="FILE", help="certificate file (.crt)")

    renew = modes.add_parser(
        "renew",
        help="make a new certificate to replace an existing one",
        description="Makes a new key and certificate for the holder of a certificate, in the same "
        "folder or another one. No file is replaced: cluster.toml may list both certificates "
        "during the change.",
    )
    renew.add_argument(
        "certificate", type=Path, metavar="FILE", help="current certificate file (.crt)"
    )
    common.add_option(
        renew, "--keep-key", "certify the current key again instead of making a new key"
    )
    common.add_option(
        renew, "--output DIR", "output folder (default: the folder of FILE)", "--out", dest="out"
    )
    renew.add_argument("--days", type=int, default=365, help="validity in days (default: 365)")

    everything = modes.add_parser(
        "all", help="make all files of a trial cluster, for evaluation by one person"
    )
    common.add_option(
        everything,
        "--hosts HOST:PORT,HOST:PORT,HOST:PORT",
        "addresses of workers 0, 1 and 2",
        required=True,
    )
    common.add_option(
        everything,
        "--client NAME",
        "name of a client; may be repeated (default: analyst)",
        action="append",
    )
    for name, mode in modes.choices.items():
        mode.epilog = listing.format_command_examples(f"certs {name}")
    for mode in (party, client, everything):
        common.add_option(
            mode,
            "--output DIR",
            "output folder, created if missing",
            "--out",
            dest="out",
            required=True,
        )
        mode.add_argument("--days", type=int, default=365, help="validity in days (default: 365)")


def run_certs(args: argparse.Namespace) -> int:
    """Make a key and certificate, or all files of a trial cluster.

    Each organization makes its own key and sends only the certificate to the others. Existing
    files are never overwritten.

    Raises:
        UsageError: ``--days``, ``--hosts`` or a name is invalid.
        ConfigError: a file exists already or cannot be written.
    """
    if args.mode == "party":
        _make_certificate_files(
            args.out, f"party{args.party}", tls.party_common_name(args.party), args.days
        )
        _print_certificate_notes(
            f"Send party{args.party}.crt to the other two parties and to every client; compare "
            "the fingerprint with them over another channel, such as the telephone.",
            f"party{args.party}.key never leaves this machine. Name it in your worker.toml:",
            f'  party = {args.party}\n  key = "party{args.party}.key"',
        )
    elif args.mode == "client":
        with _config_errors_as_usage_errors():
            ClientConfig(args.name)
        _make_certificate_files(
            args.out, f"client-{args.name}", tls.client_common_name(args.name), args.days
        )
        _print_certificate_notes(
            f"Send client-{args.name}.crt to the three parties; compare the fingerprint with "
            "them over another channel, such as the telephone.",
            f"client-{args.name}.key never leaves this machine. They add to cluster.toml:",
            f'  [[client]]\n  name = "{args.name}"\n  certificate = "client-{args.name}.crt"',
        )
    elif args.mode == "show":
        certificate = tls.load_certificate(args.certificate)
        print(f"name         {tls.certificate_server_name(certificate)}")
        _print_certificate(certificate)
    elif args.mode == "renew":
        _renew_certificate(
            args.certificate, args.out or args.certificate.parent, args.days, args.keep_key
        )
    else:
        make_trial_cluster(args.out, args.hosts, args.client or ["analyst"], args.days)
    return 0


def _make_certificate_files(folder: Path, stem: str, common_name: str, days: int) -> None:
    key, certificate = tls.make_self_signed_certificate(common_name, days)
    key_path, certificate_path = folder / f"{stem}.key", folder / f"{stem}.crt"
    _write_certificate_files(folder, {key_path: key}, {certificate_path: certificate})
    print(f"send         {certificate_path}")
    print(f"keep secret  {key_path}")
    _print_certificate(certificate)


def _print_certificate(certificate: bytes, which: str = "") -> None:
    print(
        f"{which}fingerprint  "
        f"{tls.format_certificate_fingerprint(tls.compute_certificate_fingerprint(certificate))}"
    )
    print(f"{which}valid until  {tls.certificate_valid_until(certificate):%Y-%m-%d %H:%M} UTC")


def _renew_certificate(path: Path, folder: Path, days: int, keep_key: bool) -> None:
    old = tls.load_certificate(path)
    old_key = tls.load_private_key(path.with_suffix(".key")) if keep_key else None
    if old_key is not None:
        tls.select_key_certificate(old_key, [old])  # rejects a key that does not fit
    key, new = tls.make_self_signed_certificate(tls.certificate_server_name(old), days, old_key)
    stem = path.stem
    while stem.endswith("-new"):  # from an earlier renewal
        stem = stem.removesuffix("-new")
    # Names alternate between NAME and NAME-new, so that each renewal has new names.
    name = f"{stem}-new" if path.stem == stem else stem
    key_path, new_path = folder / f"{name}.key", folder / f"{name}.crt"
    _write_certificate_files(folder, {} if keep_key else {key_path: key}, {new_path: new})
    print(f"send             {new_path}")
    if not keep_key:
        print(f"keep secret      {key_path}")
    for which, certificate in (("old", old), ("new", new)):
        _print_certificate(certificate, f"{which} ")
    both = f'certificate = ["{path.name}", "{new_path.name}"]'
    key_name = path.with_suffix(".key").name if keep_key else key_path.name
    _print_certificate_notes(
        f"1. Send {new_path.name} to all members; compare its fingerprint over another channel.",
        f"2. Each member puts it into the folder of cluster.toml, writes {both}",
        "   there, and restarts the worker. Jobs are refused until all files are equal again.",
    )
    if stem.startswith("client-"):
        _print_certificate_notes(
            f"3. Use {key_name} and {new_path.name} from then on: rename them to {stem}.key and"
        )
        _print_certificate_notes(
            f"   {stem}.crt in the folder of your cluster.toml (keep the old pair elsewhere)."
        )
    else:
        _print_certificate_notes(
            f'3. At any later time, write key = "{key_name}" in your worker.toml and restart.'
        )
    _print_certificate_notes(
        "4. Each member deletes the old certificate from the list and restarts."
    )


def make_trial_cluster(folder: Path, hosts: str, clients: list[str], days: int) -> None:
    """Write keys, certificates and settings of a whole trial cluster.

    Args:
        hosts: three addresses HOST:PORT, separated by commas.
        clients: names of the clients.
        days: validity of the certificates in days.

    Raises:
        UsageError: the addresses or a name are invalid.
        ConfigError: a file exists already or cannot be written.
    """
    with _config_errors_as_usage_errors():
        cluster, keys = _build_trial_cluster(hosts, clients, days)
    allowed = ", ".join(f'"{name}"' for name in clients)
    public = {
        folder / f"worker{index}.toml": _WORKER_TOML.format(party=index, clients=allowed).encode()
        for index in range(3)
    }
    for each in cluster.members:
        assert each.certificate is not None
        public[folder / member_certificate_file(each)] = each.certificate
    public[folder / "cluster.toml"] = cluster.to_toml().encode()
    secret = {folder / f"{name}.key": key for name, key in keys.items()}
    _write_certificate_files(folder, secret, public)
    for path in [*secret, *public]:
        print(path)
    _print_certificate_notes(
        "WARNING: FOR TRIALS ONLY. This machine has all three private keys, so its user can "
        "reconstruct every secret of this cluster.",
        'For real data each organization runs "python -m tfe_bench certs party" on its own '
        "machine and sends only the certificate.",
    )


def _build_trial_cluster(
    hosts: str, clients: list[str], days: int
) -> tuple[ClusterConfig, dict[str, bytes]]:
    """Return the cluster and the private keys of its members by the stem of their files."""
    addresses = hosts.split(",")
    if len(addresses) != 3:
        raise UsageError(
            f"Expected three addresses in --hosts, separated by commas. Received: "
            f"{len(addresses)}. Write them like 127.0.0.1:7700,127.0.0.2:7700,127.0.0.3:7700.",
            code="wrong-party-count",
            operation="--hosts",
            received=len(addresses),
            expected=3,
        )
    keys: dict[str, bytes] = {}
    parties = []
    for index, text in enumerate(addresses):
        host, port = parse_worker_address("--hosts", text.strip())
        name = f"party{index}"
        keys[name], certificate = tls.make_self_signed_certificate(
            tls.party_common_name(index), days
        )
        parties.append(PartyConfig(index, name, host, port, certificate))
    members = []
    for name in clients:
        ClientConfig(name)  # before the name becomes part of a certificate and a path
        common_name = tls.client_common_name(name)
        keys[f"client-{name}"], certificate = tls.make_self_signed_certificate(common_name, days)
        members.append(ClientConfig(name, certificate))
    return ClusterConfig("trial", tuple(parties), tuple(members)), keys


@contextlib.contextmanager
def _config_errors_as_usage_errors() -> Iterator[None]:
    """Turn errors of a configuration file into errors of the command line."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(str(error), code=error.code, operation=error.operation) from None


def _write_certificate_files(
    folder: Path, secret: dict[Path, bytes], public: dict[Path, bytes]
) -> None:
    """Write all files; on failure, remove them and a new folder. Never replace a file."""
    try:
        is_new_folder = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot create the folder {folder}. Received: {error.strerror}. Choose another --out.",
            code="file-not-writable",
            operation="--out",
            received=folder,
        ) from None
    written: list[Path] = []
    try:
        for files, write in ((secret, write_secret_file), (public, write_public_file)):
            for path, content in files.items():
                write(path, content)
                written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        if is_new_folder:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _print_certificate_notes(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)


COMMANDS = {"certs": (add_cert_options, run_certs)}
