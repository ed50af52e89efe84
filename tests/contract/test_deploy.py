"""`coterie deploy`: kits that are whole, keys that nobody else can read, units that systemd takes."""

import json
import shutil
import ssl
import stat
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

PARTIES = ("north", "south clinic")
SERVER = {"ca.crt", "server.crt", "server.key", "coterie-superlink.service"}
SITE = {"ca.crt", "node", "node.pub", "coterie-site.service", "coterie-supernode.service", "README.md"}


def deploy(coterie, out, *more, engine="flower", server="relay.example.org", parties=PARTIES):
    named = [word for party in parties for word in ("--party", party)]
    return coterie("deploy", out, "--engine", engine, "--server", server, *named, *more)


@pytest.fixture
def kits(coterie, tmp_path):
    code, out, error = deploy(coterie, tmp_path / "kits", "--json")
    assert code == 0, error
    told = json.loads(out)
    assert told["server"] == "relay.example.org:9092"
    assert told["parties"] == list(PARTIES)
    return tmp_path / "kits"


def test_every_machine_has_its_folder_and_private_keys_are_private(kits):
    assert {path.name for path in (kits / "server").iterdir()} == SERVER
    for party in PARTIES:
        assert {path.name for path in (kits / "sites" / party).iterdir()} == SITE
    private = [path for path in kits.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in private} == {"server.key", "node"}
    assert len(private) == 1 + len(PARTIES)
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert not any(path.read_bytes().count(b"PRIVATE") for path in (kits / "coordinator").rglob("*") if path.is_file())


def test_what_each_site_logs_in_with_is_what_the_coordinator_registers(kits):
    kit = json.loads((kits / "coordinator" / "kit.json").read_text())
    assert kit["parties"] == list(PARTIES)
    for number, party in enumerate(PARTIES):
        key = load_ssh_private_key((kits / "sites" / party / "node").read_bytes(), None)
        public = load_ssh_public_key((kits / "coordinator" / "nodes" / f"{number}.pub").read_bytes())
        assert key.public_key().public_numbers() == public.public_numbers()


def test_the_certificate_is_for_the_server_under_the_authority_that_sites_get(kits):
    authority = x509.load_pem_x509_certificate((kits / "sites" / "north" / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((kits / "server" / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["relay.example.org", "localhost"]
    # and OpenSSL takes both
    context = ssl.create_default_context(cafile=str(kits / "sites" / "north" / "ca.crt"))
    context.load_cert_chain(kits / "server" / "server.crt", kits / "server" / "server.key")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd on this machine")
def test_systemd_takes_the_units(kits, tmp_path):
    units = [path for path in kits.rglob("*.service")]
    assert len(units) == 1 + 2 * len(PARTIES)
    for number, path in enumerate(units):
        # of programs and users that another machine has
        text = path.read_text().replace("/opt/coterie/bin/", "/usr/bin/env ")
        copy = tmp_path / f"{number}" / path.name
        copy.parent.mkdir()
        copy.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
        about_it = [line for line in done.stderr.splitlines() if path.name in line]
        assert not about_it


def test_the_owner_of_records_has_no_network_and_the_relay_no_records(kits):
    site = (kits / "sites" / "north" / "coterie-site.service").read_text().splitlines()
    node = (kits / "sites" / "north" / "coterie-supernode.service").read_text().splitlines()
    link = (kits / "server" / "coterie-superlink.service").read_text().splitlines()
    assert {"User=coterie", "PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX"} <= set(site)
    for unit in (node, link):
        assert {"User=coterie-relay", "InaccessiblePaths=-/var/lib/coterie"} <= set(unit)
        assert "Environment=FLWR_TELEMETRY_ENABLED=0" in unit


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"engine": "carrier-pigeon"}, "--engine: got 'carrier-pigeon'; one of flower, nvflare is needed"),
        ({"server": "relay example"}, "--server: got 'relay example'; the name or the address"),
        ({"server": "relay:99999"}, "--server: got 'relay:99999'; HOST or HOST:PORT"),
        ({"server": "relay:"}, "--server: got 'relay:'; HOST or HOST:PORT"),
        ({"parties": ()}, "--party: got none"),
        ({"parties": ("north", "north")}, "--party: got 'north' twice"),
        ({"parties": ("../north",)}, "--party: got '../north'; a name that a folder can have"),
    ],
)
def test_nonsense_is_said_in_one_sentence_and_nothing_is_written(coterie, tmp_path, settings, sentence):
    code, _, error = deploy(coterie, tmp_path / "kits", **settings)
    assert code == 2
    assert sentence in error
    assert list(tmp_path.iterdir()) == []
