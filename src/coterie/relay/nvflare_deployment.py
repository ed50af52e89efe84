"""Kits for NVIDIA FLARE: its server on the server's machine, a FLARE site at each site."""

import ipaddress
import shutil
from collections.abc import Sequence
from pathlib import Path

from coterie.errors import InputError
from coterie.relay import nvflare
from coterie.relay.at_site import SOCKET
from coterie.relay.deployment import (
    HUB_FOLDER,
    HUB_SOCKET,
    KIT,
    OWNER,
    PROGRAMS,
    RELAY,
    RELAY_HOME,
    SITE_SOCKET,
    Server,
    relay_unit,
    site_steps,
)
from coterie.relay.hub import SOCKET as HUB

_START = f"/bin/bash {KIT}/flare/startup/sub_start.sh --once"


def write(folder: Path, server: Server, parties: Sequence[str]) -> None:
    """FLARE's own provisioning, in the places where the other engine has its files."""
    _check_name(server.host)
    kits = folder / "kits"
    names = nvflare.make_kits(
        kits,
        parties,
        server=server.host,
        port=server.port,
        hub=Path(HUB_SOCKET),
        group=RELAY,
        storage=Path(RELAY_HOME) / "server",
    )
    (folder / "server").mkdir()
    (kits / server.host).rename(folder / "server" / "flare")
    (folder / "server" / "coterie-flare.service").write_text(_server_unit(), encoding="utf-8")
    (kits / nvflare.USER).rename(folder / "coordinator")
    for party, name in names.items():
        site = folder / "sites" / party
        site.mkdir(parents=True)
        (kits / name).rename(site / "flare")
        (site / "coterie-flare.service").write_text(_site_unit(), encoding="utf-8")
        (site / "README.md").write_text(_site_page(party, server), encoding="utf-8")
    shutil.rmtree(kits)
    for key in folder.rglob("*.key"):
        key.chmod(0o600)
    (folder / "README.md").write_text(_page(server, parties), encoding="utf-8")


def _check_name(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return
    raise InputError(f"--server: got {host!r}; NVIDIA FLARE needs a host name, which all sites can look up")


def _server_unit() -> str:
    return relay_unit(
        "NVIDIA FLARE server, which carries sealed envelopes between a coordinator and sites",
        _START,
        {**_environment(), HUB: HUB_SOCKET},
        more=HUB_FOLDER,
    )


def _site_unit() -> str:
    return relay_unit(
        "NVIDIA FLARE site, which carries sealed envelopes to this machine's site",
        _START,
        {**_environment(), SOCKET: SITE_SOCKET},
    )


def _environment() -> dict[str, str]:
    # FLARE copies the kit there, and works in the copy
    return {"NVFL_WORKSPACE": f"{RELAY_HOME}/flare", "PATH": f"{PROGRAMS}:/usr/bin:/bin"}


def _page(server: Server, parties: Sequence[str]) -> str:
    return f"""\
# A relay on NVIDIA FLARE, for {", ".join(parties)}

| folder | goes to | private in it |
|---|---|---|
| `server` | the machine {server.host}, `{KIT}` | `flare/startup/server.key` |
| `coordinator` | the same machine, a folder of whoever runs `coterie coordinate` | `startup/client.key` |
| `sites/PARTY` | that party's machine, `{KIT}`, by a way that nobody else can read | `flare/startup/client.key` |

The key of the certificate authority was not kept. FLARE's certificates end after 360 days; new
kits replace all of these.

## The machine {server.host}

    python3 -m venv /opt/coterie
    /opt/coterie/bin/pip install 'coterie[nvflare]'
    useradd --system --shell /usr/sbin/nologin {RELAY}
    usermod --append --groups {RELAY} COORDINATOR   # whoever runs `coterie coordinate`
    install -d {KIT}
    cp -r server/flare {KIT}/
    chown -R {RELAY} {KIT}/flare
    install -m 644 server/coterie-flare.service /etc/systemd/system/
    systemctl daemon-reload
    systemctl enable --now coterie-flare

Then, as the coordinator, when every site has approved the proposal:

    coterie coordinate study --engine nvflare --kit coordinator

## Firewall

- TCP {server.port} on {server.host}, from the sites' addresses. Whoever connects shows a certificate of these kits.
- Sites open no port. They connect outwards to {server.address}, by mutual TLS.
- Jobs can bring no code: server and sites run two classes of the installed package and nothing else.
"""


def _site_page(name: str, server: Server) -> str:
    return f"""\
# The site {name} on NVIDIA FLARE

`flare/startup/client.key` in this folder is private: it is what this site shows at {server.address}.

    python3 -m venv /opt/coterie
    /opt/coterie/bin/pip install 'coterie[nvflare]'
    useradd --system --shell /usr/sbin/nologin {OWNER}
    useradd --system --shell /usr/sbin/nologin {RELAY}
    install -d {KIT}
    cp -r flare {KIT}/
    chown -R {RELAY} {KIT}/flare
    install -m 644 coterie-site.service coterie-flare.service /etc/systemd/system/
{site_steps(name, "coterie-flare", server)}
"""
