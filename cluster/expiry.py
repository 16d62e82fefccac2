"""How long the members' certificates last, for logs and ``doctor``."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from tfe_bench.cluster import tls
from tfe_bench.cluster.config import ClusterConfig, PartyConfig

WARN_DAYS = 30.0
RENEW = "its owner runs: python -m tfe_bench certs renew FILE.crt"


@dataclass(frozen=True)
class Expiry:
    """One pinned certificate.

    Attributes:
        who: whose it is.
        until: when it expires (UTC).
        days: until then, negative once it has.
        early: it is not valid yet.
        replaced: another certificate of the same member lasts longer.
        fingerprint: its SHA-256.
    """

    who: str
    until: datetime.datetime
    days: float
    early: bool
    replaced: bool
    fingerprint: str

    @property
    def text(self) -> str:
        """One line for people."""
        if self.days < 0:
            return f"expired on {self.until:%Y-%m-%d %H:%M} UTC"
        if self.early:
            return "not valid yet: see the clocks"
        return f"{self.days:.0f} days left, until {self.until:%Y-%m-%d}"


def expiries(config: ClusterConfig, now: datetime.datetime | None = None) -> list[Expiry]:
    """All pinned certificates of a cluster, parties first."""
    now = now or datetime.datetime.now(datetime.UTC)
    found = []
    for each in config.members:
        called = each.index if isinstance(each, PartyConfig) else each.name
        who = f"party {called}" if isinstance(each, PartyConfig) else f"client {called}"
        for pem in each.certificates:
            until = tls.valid_until(pem)
            found.append(
                Expiry(
                    who,
                    until,
                    (until - now).total_seconds() / 86400,
                    now < tls.valid_from(pem),
                    any(tls.valid_until(other) > until for other in each.certificates),
                    tls.fingerprint(pem),
                )
            )
    return found


def warnings(config: ClusterConfig, now: datetime.datetime | None = None) -> list[str]:
    """One line for each member whose certificate lasts less than 30 days."""
    return [
        f"the certificate of {each.who}: {each.text}; {RENEW}"
        for each in expiries(config, now)
        if (each.days < WARN_DAYS or each.early) and not each.replaced
    ]
