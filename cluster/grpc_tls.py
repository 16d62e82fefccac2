"""gRPC credentials from pinned certificates.

gRPC accepts a pinned certificate as its own trust anchor (it verifies with partial chains), so a
channel trusts exactly the one certificate of the worker it calls and a server exactly the
certificates of its cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from tfe_bench.cluster import tls
from tfe_bench.errors import SecurityError


def worker_tls_credentials(
    key: bytes,
    cert: bytes,
    trusted: Sequence[bytes],
    on_handshake: Callable[[], Sequence[bytes] | None] = lambda: None,
) -> grpc.ServerCredentials:
    """Return TLS credentials of a worker's server: callers must present a trusted certificate.

    The server still has to identify the caller by `peer_identity`: the handshake only shows that
    it owns *one* of the trusted certificates.

    Args:
        key: the worker's private key (PEM).
        cert: the worker's certificate (PEM).
        trusted: the certificates (PEM) of the other parties and of the clients.
        on_handshake: called at the start of every handshake; must return at once. Returns the
            certificates to trust from now on, None for no change.

    Raises:
        ConfigError: key and certificate do not belong together, or a certificate is unusable.
        SecurityError: ``trusted`` is empty, or the worker's own certificate is not valid now.
            An expired certificate in ``trusted`` only locks out its own holder.
    """
    cert = tls.check_tls_key_pair(key, cert)
    if not trusted:
        raise SecurityError(
            "A server requires the certificates of its callers. Received: none. "
            "List parties and clients with their certificates in cluster.toml.",
            code="certificate-missing",
        )

    admitted = list(trusted)

    def build_tls_configuration(
        certificates: Sequence[bytes],
    ) -> grpc.ServerCertificateConfiguration:
        roots = b"".join(tls.canonical_certificate(certificate) for certificate in certificates)
        return grpc.ssl_server_certificate_configuration([(key, cert)], roots)

    def updated_tls_configuration() -> grpc.ServerCertificateConfiguration | None:
        """Return gRPC's configuration before a handshake: None if it has not changed."""
        nonlocal admitted
        if (trusted_now := on_handshake()) is None or list(trusted_now) == admitted:
            return None
        configuration = build_tls_configuration(trusted_now)
        admitted = list(trusted_now)
        return configuration

    return grpc.dynamic_ssl_server_credentials(
        build_tls_configuration(admitted),
        updated_tls_configuration,  # pyright: ignore[reportArgumentType]
        require_client_authentication=True,
    )


def channel_tls_credentials(
    key: bytes, cert: bytes, server_certificate: bytes | Sequence[bytes]
) -> grpc.ChannelCredentials:
    """Return TLS credentials for calls to one worker: only its pinned certificate is accepted.

    Use them with `tls_channel_options` of the same certificate.

    Args:
        key: the caller's private key (PEM).
        cert: the caller's certificate (PEM).
        server_certificate: the called worker's certificate (PEM), or both during a roll-over.

    Raises:
        ConfigError: key and certificate do not belong together, or a certificate is unusable.
        SecurityError: the caller's own certificate, or all of the worker's, are not valid now.
    """
    cert = tls.check_tls_key_pair(key, cert)
    pinned = [server_certificate] if isinstance(server_certificate, bytes) else server_certificate
    tls.check_any_certificate_valid(pinned)
    return grpc.ssl_channel_credentials(
        root_certificates=b"".join(
            tls.canonical_certificate(certificate) for certificate in pinned
        ),
        private_key=key,
        certificate_chain=cert,
    )


def tls_channel_options(server_cert: bytes) -> list[tuple[str, str | int]]:
    """Return gRPC channel options for calls to the worker with this pinned certificate.

    The expected name comes from the certificate, as hosts are known by address; an HTTP proxy
    in the environment is not used.

    Raises:
        ConfigError, SecurityError: as `tls.canonical_certificate`.
    """
    return [
        ("grpc.ssl_target_name_override", tls.certificate_server_name(server_cert)),
        ("grpc.enable_http_proxy", 0),
    ]
