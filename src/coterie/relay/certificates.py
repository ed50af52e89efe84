"""Certificates and keys of a relay: an authority, a server's certificate under it, and keys that nodes log in with.

They let machines find each other and keep strangers out. What a site agrees to, and who can read a packet, rests on the
identities in the proposal (`coterie.keys`) and on nothing here.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.errors import InputError

YEARS = 2
# a certificate is valid from this long before it was made
_CLOCKS_APART = datetime.timedelta(hours=1)


class Authority:
    """The certificate authority of one deployment; all its machines trust what this key has signed."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP384R1())
        self._name = _named(name)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA384())
        )

    def write_certificate(self, path: Path) -> None:
        path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def write_server(self, certificate: Path, key: Path, hosts: Sequence[str]) -> None:
        """A server's certificate for these names and addresses, and its private key."""
        own = ec.generate_private_key(ec.SECP384R1())
        made = (
            _builder(_named(hosts[0]), self._name, own.public_key())
            .add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA384())
        )
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        write_private(
            key,
            own.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def write_node_key(path: Path) -> Path:
    """A key that a node logs in with, as ssh-keygen writes it; returns the file with its public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(
        path,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    public = path.with_name(f"{path.name}.pub")
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"
    )
    return public


def write_private(path: Path, content: bytes) -> None:
    """A new file that its owner alone can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)


def check_host(what: str, host: str) -> str:
    """A name or an address that can stand in a certificate."""
    try:
        _host(host)
    except ValueError:
        raise InputError(f"{what}: got {host!r}; the name or the address of a machine is needed") from None
    return host


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        letters = set("abcdefghijklmnopqrstuvwxyz0123456789-")
        parts = host.lower().split(".")
        if len(host) > 253 or not all(0 < len(part) < 64 and set(part) <= letters for part in parts):
            raise ValueError(host) from None
        return x509.DNSName(host)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    )
