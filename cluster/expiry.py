"""Expiry dates of the members' certificates, for logs and ``doctor``."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from tfe_bench.cluster import tls
from tfe_bench.cluster.config import ClusterConfig, PartyConfig

WARN_DAYS = 30.0
RENEW = "its owner runs: python -m tfe_bench certs renew FILE.crt"


@dataclass(frozen=True)
class CertificateExpiry:
    """One pinned certificate.

    Attributes:
        member: its owner.
        expires_at: time of expiry (UTC).
        days: days until expiry, negative afterwards.
        is_not_yet_valid: it is not valid yet.
        replaced: another certificate of the same member expires later.
        fingerprint: its SHA-256.
    """

    member: str
    expires_at: datetime.datetime
    days: float
    is_not_yet_valid: bool
    replaced: bool
    fingerprint: str

    @property
    def description(self) -> str:
        """One line for people."""
        if self.days < 0:
            return f"expired on {self.expires_at:%Y-%m-%d %H:%M} UTC"
        if self.is_not_yet_valid:
            return "not valid yet: see the clocks"
        return f"{self.days:.0f} days left, until {self.expires_at:%Y-%m-%d}"


def list_certificate_expiries(
    config: ClusterConfig, now: datetime.datetime | None = None
) -> list[CertificateExpiry]:
    """List all pinned certificates of a cluster, parties first."""
    now = now or datetime.datetime.now(datetime.UTC)
    listed = []
    for member in config.members:
        name = member.index if isinstance(member, PartyConfig) else member.name
        description = f"party {name}" if isinstance(member, PartyConfig) else f"client {name}"
        for pem in member.certificates:
            until = tls.certificate_valid_until(pem)
            listed.append(
                CertificateExpiry(
                    description,
                    until,
                    (until - now).total_seconds() / 86400,
                    now < tls.certificate_valid_from(pem),
                    any(
                        tls.certificate_valid_until(other) > until for other in member.certificates
                    ),
                    tls.compute_certificate_fingerprint(pem),
                )
            )
    return listed


def certificate_expiry_warnings(
    config: ClusterConfig, now: datetime.datetime | None = None
) -> list[str]:
    """Return one line for each member whose certificate expires in less than 30 days."""
    return [
        f"the certificate of {expiry.member}: {expiry.description}; {RENEW}"
        for expiry in list_certificate_expiries(config, now)
        if (expiry.days < WARN_DAYS or expiry.is_not_yet_valid) and not expiry.replaced
    ]
