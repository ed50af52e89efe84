"""Keys of sites and coordinators: Ed25519 to sign with, X25519 to seal to and to agree on secrets with.

An identity is the public half, as one line of text that people can send each other and compare. The private half is a
file that its owner alone can read.
"""

import base64
import binascii
import dataclasses
import functools
import hashlib
import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coterie.errors import CoterieError, InputError

_PREFIX = "coterie1:"
_FILE_PREFIX = "coterie-private-key-1:"
_SEALED = b"coterie sealed 2"
_NONCE_BYTES = 12
# whose keys are kept while they seal one thing after the other
_MOST_SENDERS = 64
SIGNATURE_BYTES = 64
# a sender's key, a nonce and a tag, besides what is sealed
SEAL_BYTES = 32 + _NONCE_BYTES + 16


class SignatureError(CoterieError):
    """Something was not signed by whom it should be, or cannot be opened."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """The public keys of a site or a coordinator, 32 bytes each."""

    signing: bytes
    sealing: bytes

    def __str__(self) -> str:
        return _PREFIX + base64.urlsafe_b64encode(self.signing + self.sealing).decode().rstrip("=")

    @classmethod
    def parse(cls, text: object, what: str = "identity") -> "Identity":
        wanted = f"a line that begins with {_PREFIX!r}, as `coterie site identity` prints it, is needed"
        if not isinstance(text, str) or not text.strip().startswith(_PREFIX) or len(text) > 200:
            raise InputError(f"{what}: got {str(text)[:60]!r}; {wanted}")
        body = text.strip().removeprefix(_PREFIX)
        try:
            raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        # one text for one identity: the last letter has bits that decoding would pass over
        if len(raw) != 64 or str(found := cls(raw[:32], raw[32:])) != text.strip():
            raise InputError(f"{what}: got {text[:60]!r}, which is cut off or misspelt; {wanted}")
        return found

    @property
    def fingerprint(self) -> str:
        """Short enough to compare over the telephone."""
        digest = hashlib.sha256(self.signing + self.sealing).hexdigest()[:20]
        return " ".join(digest[i : i + 4] for i in range(0, 20, 4))

    def check(self, purpose: bytes, content: bytes, signature: bytes) -> None:
        """Refuse a signature that this identity did not make over this content, for this purpose."""
        try:
            self._public_key.verify(signature, _signed(purpose, content))
        except InvalidSignature:
            raise SignatureError(f"signature: it is not one by the key {self.fingerprint}") from None

    @functools.cached_property
    def _public_key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.signing)

    def seal(self, content: bytes, context: bytes) -> bytes:
        """So that only the owner of this identity can read it; `context` must be the same when it is opened."""
        return Sealer(self).seal(content, context)


class Sealer:
    """Seals what one sender has for one identity, one thing after the other.

    An X25519 key is made for it here, which is nowhere else and is gone with this object; the key that it leads to is
    agreed on once. Nonces are random: a counter would go on twice after a fork, or in a machine that was put back to an
    earlier state, and of 2^32 things under one key two have the same nonce with a probability of 2^-33.
    """

    def __init__(self, to: Identity) -> None:
        once = X25519PrivateKey.generate()
        shared = once.exchange(X25519PublicKey.from_public_bytes(to.sealing))
        self._sent = once.public_key().public_bytes_raw()
        self._cipher = ChaCha20Poly1305(_sealing_key(shared, self._sent, to.sealing))

    def seal(self, content: bytes, context: bytes) -> bytes:
        """So that only the identity's owner can read it; `context` must be the same when it is opened."""
        nonce = os.urandom(_NONCE_BYTES)
        return self._sent + nonce + self._cipher.encrypt(nonce, content, context)


class PrivateKeys:
    """The private half; `repr` does not show it."""

    def __init__(self, signing: bytes, sealing: bytes) -> None:
        self.signing = Ed25519PrivateKey.from_private_bytes(signing)
        self.sealing = X25519PrivateKey.from_private_bytes(sealing)
        self.identity = Identity(
            self.signing.public_key().public_bytes_raw(), self.sealing.public_key().public_bytes_raw()
        )
        # what was agreed on with those who sealed something last
        self._cipher_of = functools.lru_cache(_MOST_SENDERS)(self._agreed)

    def __repr__(self) -> str:
        return f"PrivateKeys({self.identity.fingerprint})"

    @classmethod
    def generate(cls) -> "PrivateKeys":
        return cls(os.urandom(32), os.urandom(32))

    def sign(self, purpose: bytes, content: bytes) -> bytes:
        return self.signing.sign(_signed(purpose, content))

    def open_sealed(self, sealed: bytes, context: bytes) -> bytes:
        sent, nonce, content = sealed[:32], sealed[32 : 32 + _NONCE_BYTES], sealed[32 + _NONCE_BYTES :]
        try:
            return self._cipher_of(sent).decrypt(nonce, content, context)
        except (InvalidTag, ValueError):
            raise SignatureError("sealed: it was not sealed to this key, or it was changed on its way") from None

    def _agreed(self, sent: bytes) -> ChaCha20Poly1305:
        shared = self.sealing.exchange(X25519PublicKey.from_public_bytes(sent))
        return ChaCha20Poly1305(_sealing_key(shared, sent, self.identity.sealing))

    def save(self, path: Path) -> None:
        """A new file that its owner alone can read."""
        raw = self.signing.private_bytes_raw() + self.sealing.private_bytes_raw()
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(f"keys: {str(path)!r} exists already; keys are never overwritten") from None
        with open(file, "w", encoding="ascii") as out:
            out.write(_FILE_PREFIX + base64.b64encode(raw).decode() + "\n")
            out.flush()
            os.fsync(out.fileno())

    @classmethod
    def load(cls, path: Path) -> "PrivateKeys":
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no key file"
            raise InputError(f"keys: cannot read {str(path)!r} ({reason})") from None
        if stat.S_IMODE(mode) & 0o077:
            raise InputError(
                f"keys: {str(path)!r} can be read by others (mode {stat.S_IMODE(mode):o}); chmod 600 it, and if "
                "somebody may have read it make new keys"
            )
        try:
            raw = base64.b64decode(text.strip().removeprefix(_FILE_PREFIX), validate=True)
        except binascii.Error:
            raw = b""
        if not text.startswith(_FILE_PREFIX) or len(raw) != 64:
            raise InputError(f"keys: {str(path)!r} is no key file")
        return cls(raw[:32], raw[32:])


def _signed(purpose: bytes, content: bytes) -> bytes:
    """A signature for one purpose means nothing for another."""
    return b"coterie " + purpose + b"\0" + content


def _sealing_key(shared: bytes, sent: bytes, to: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=sent + to, info=_SEALED).derive(shared)
