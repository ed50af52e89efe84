"""Kits for Flower: a SuperLink on the server's machine, a SuperNode at each site."""

from collections.abc import Sequence
from pathlib import Path

from coterie.relay import flower
from coterie.relay.at_site import SOCKET
from coterie.relay.certificates import YEARS, Authority, write_node_key
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
from coterie.relay.processes import LOOPBACK

FLOWER = "1.41"
# on loopback, for the processes that a SuperNode starts
_NODE_PORT = 9094


def write(folder: Path, server: Server, parties: Sequence[str]) -> None:
    """The authority's key is not kept: nobody can make another certificate that these machines trust."""
    authority = Authority(f"Coterie relay at {server.host}"[:64])
    coordinator, link = folder / "coordinator", folder / "server"
    for place in (coordinator, link):
        place.mkdir()
        authority.write_certificate(place / "ca.crt")
    # the coordinator is on the same machine, and asks for it there
    hosts = [server.host, *(host for host in ("localhost", LOOPBACK) if host != server.host)]
    authority.write_server(link / "server.crt", link / "server.key", hosts)
    (link / "coterie-superlink.service").write_text(_link_unit(server), encoding="utf-8")
    public_keys = []
    for name in parties:
        site = folder / "sites" / name
        site.mkdir(parents=True)
        authority.write_certificate(site / "ca.crt")
        public_keys.append(write_node_key(site / "node"))
        (site / "coterie-supernode.service").write_text(_node_unit(server), encoding="utf-8")
        (site / "README.md").write_text(_site_page(name, server), encoding="utf-8")
    address = f"{LOOPBACK}:{server.port}"
    flower.Kit(coordinator, address, tuple(parties), socket=HUB_SOCKET, group=RELAY).write(public_keys)
    (folder / "README.md").write_text(_page(server, parties), encoding="utf-8")


def _link_unit(server: Server) -> str:
    anywhere = "::" if ":" in server.host else "0.0.0.0"
    command = flower.superlink(Path(KIT), anywhere, server.port, database=Path(RELAY_HOME) / "superlink.db")
    return relay_unit(
        "Flower SuperLink, which carries sealed envelopes between a coordinator and sites",
        " ".join([f"{PROGRAMS}/flower-superlink", *command[1:]]),
        _environment(),
        more=HUB_FOLDER,
    )


def _node_unit(server: Server) -> str:
    command = flower.supernode(server.address, Path(KIT) / "ca.crt", Path(KIT) / "node", _NODE_PORT)
    return relay_unit(
        "Flower SuperNode, which carries sealed envelopes to this machine's site",
        " ".join([f"{PROGRAMS}/flower-supernode", *command[1:]]),
        {**_environment(), SOCKET: SITE_SOCKET},
    )


def _environment() -> dict[str, str]:
    return {**flower.QUIET, "FLWR_HOME": RELAY_HOME, "PATH": f"{PROGRAMS}:/usr/bin:/bin"}


def _page(server: Server, parties: Sequence[str]) -> str:
    return f"""\
# A relay on Flower, for {", ".join(parties)}

| folder | goes to | private in it |
|---|---|---|
| `server` | the machine {server.host}, `{KIT}` | `server.key` |
| `coordinator` | the same machine, a folder of whoever runs `coterie coordinate` | nothing |
| `sites/PARTY` | that party's machine, `{KIT}`, by a way that nobody else can read | `node` |

The key of the certificate authority was not kept. Certificates end after {YEARS} years; new kits replace all of these.

## The machine {server.host}

    python3 -m venv /opt/coterie
    /opt/coterie/bin/pip install 'coterie[flower]'
    useradd --system --shell /usr/sbin/nologin {RELAY}
    usermod --append --groups {RELAY} COORDINATOR   # whoever runs `coterie coordinate`
    install -d {KIT}
    install -m 644 server/ca.crt server/server.crt {KIT}/
    install -m 600 -o {RELAY} server/server.key {KIT}/
    install -m 644 server/coterie-superlink.service /etc/systemd/system/
    systemctl daemon-reload
    systemctl enable --now coterie-superlink

Then, as the coordinator, when every site has approved the proposal:

    coterie coordinate study --engine flower --kit coordinator

## Firewall

- TCP {server.port} on {server.host}, from the sites' addresses and from nowhere else.
- **Whoever can reach this port can hand code to every SuperNode and to the SuperLink**: Flower {FLOWER} asks
  nobody but nodes for a login. That code runs as `{RELAY}`, which has no records, no keys to them and no ledger, and it
  can neither open nor forge an envelope; it can stop a run. Keep the port closed to the world.
- Sites open no port. They connect outwards to {server.address}.
"""


def _site_page(name: str, server: Server) -> str:
    return f"""\
# The site {name} on Flower

`node` in this folder is private: it is what this site logs in with at {server.address}.

    python3 -m venv /opt/coterie
    /opt/coterie/bin/pip install 'coterie[flower]'
    useradd --system --shell /usr/sbin/nologin {OWNER}
    useradd --system --shell /usr/sbin/nologin {RELAY}
    install -d {KIT}
    install -m 644 ca.crt {KIT}/
    install -m 600 -o {RELAY} node {KIT}/
    install -m 644 coterie-site.service coterie-supernode.service /etc/systemd/system/
{site_steps(name, "coterie-supernode", server)}
- TCP {_NODE_PORT} on 127.0.0.1 is used by the SuperNode and the processes it starts.
"""
