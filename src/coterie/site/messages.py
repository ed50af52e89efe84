"""Messages between a coordinator and sites: one binary format, signed, checked field by field before anything is used.

    packet = msgpack [version, kind, body, signature]      body = msgpack {field: value}

The signature is Ed25519 over kind and body, by the key that the proposal pins for the sender. Nothing in a packet can
be executed; types and sizes are checked before a field is looked at. Transports carry packets as they are.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from coterie.errors import CoterieError
from coterie.keys import SIGNATURE_BYTES, Identity, PrivateKeys, SignatureError

VERSION = 1
# bytes
LARGEST_PACKET = 2**26
# as a sender; no party can have this name
COORDINATOR = "coordinator"
_LONGEST_NAME = 200
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_ROUNDS = 10**6

# what may be in a packet of each kind; every packet names its run and its sender
REQUESTS = {
    # asked by the coordinator
    "open": (),
    "round": ("round", "first", "heard"),
    # after the last round, for intervals: at a model that follows from what was released
    "moments": ("round", "first", "heard", "model"),
    "finish": ("first", "heard"),
    "result": ("files",),
}
REPLIES = {
    # answered by a site
    "ready": ("rounds", "known"),
    "behind": ("known",),
    "release": ("round", "value"),
    "masked": ("round", "steps"),
    "contribution": ("round", "sealed"),
    "signature": ("statement", "signature"),
    "kept": (),
    "refused": (),
    # by the coordinator, where it is a curator: a sum that it has noised
    "sum": ("round", "value"),
}
FIELDS = {**REQUESTS, **REPLIES}


class MessageError(CoterieError):
    """A packet that cannot be used; the sentence is for the log of whoever received it."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A packet whose fields have the right types; whether the sender signed it is `check_signature`'s word."""

    kind: str
    run: str
    sender: str
    fields: dict[str, Any] = dataclasses.field(repr=False)
    packet: bytes = dataclasses.field(repr=False)
    body: bytes = dataclasses.field(repr=False)
    signature: bytes = dataclasses.field(repr=False)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def check_signature(self, identity: Identity) -> None:
        try:
            identity.check(_purpose(self.kind), self.body, self.signature)
        except SignatureError:
            raise MessageError(f"a {self.kind!r} said to be from {self.sender!r} is not signed by its key") from None


def pack(kind: str, run: str, sender: str, keys: PrivateKeys, **fields: Any) -> bytes:
    if fields.keys() != set(FIELDS[kind]):
        raise TypeError(f"a {kind!r} has the fields {FIELDS[kind]}")
    content = {"run": run, "sender": sender, **{name: _plain(fields[name]) for name in FIELDS[kind]}}
    body = encoded(content)
    packet = encoded([VERSION, kind, body, keys.sign(_purpose(kind), body)])
    if len(packet) > LARGEST_PACKET:
        raise MessageError(f"a {kind!r} of {len(packet):,} bytes; at most {LARGEST_PACKET:,} can be sent")
    return packet


def unpack(packet: bytes) -> Message:
    """The message in a packet, all its types checked; MessageError where anything is not as it should be."""
    if len(packet) > LARGEST_PACKET:
        raise MessageError(f"a packet of {len(packet):,} bytes; at most {LARGEST_PACKET:,} are read")
    outer = decoded(packet)
    if not isinstance(outer, list) or len(outer) != 4:
        raise MessageError("a packet that is no message of this kind of program")
    version, kind, body, signature = outer
    if type(version) is not int or version != VERSION:
        raise MessageError(f"a message of version {str(version)[:20]}; version {VERSION} is read here")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise MessageError(f"a message of an unknown kind {str(kind)[:40]!r}")
    if not isinstance(body, bytes) or not isinstance(signature, bytes) or len(signature) != SIGNATURE_BYTES:
        raise MessageError(f"a {kind!r} without a body or without a signature")
    content = decoded(body)
    if not isinstance(content, dict) or content.keys() != {"run", "sender", *FIELDS[kind]}:
        raise MessageError(f"a {kind!r} whose fields are not those of its kind")
    run, sender = content.pop("run"), content.pop("sender")
    if not _is_digest(run) or not isinstance(sender, str) or not 0 < len(sender) <= _LONGEST_NAME:
        raise MessageError(f"a {kind!r} whose run or sender is none")
    for name, value in content.items():
        if not _CHECKS[name](value):
            raise MessageError(f"a {kind!r} whose {name!r} is of another type or size")
    return Message(kind, run, sender, content, bytes(packet), body, signature)


def array(value: np.ndarray) -> dict[str, Any]:
    """A field that holds numbers: doubles, or whole steps."""
    dtype = "<i8" if value.dtype.kind == "i" else "<f8"
    value = np.ascontiguousarray(value, dtype=dtype)
    return {"shape": list(value.shape), "dtype": dtype, "data": value.tobytes()}


def numbers(field: dict[str, Any], shape: Sequence[int], *, largest_norm: float = math.inf) -> np.ndarray:
    """The array in a field, if it has this shape, is finite and its 2-norm is at most `largest_norm`."""
    if field["shape"] != list(shape):
        raise MessageError(f"an array of shape {tuple(field['shape'])}; {tuple(shape)} is what the plan says")
    value = np.frombuffer(field["data"], dtype=field["dtype"]).reshape(shape)
    # modulo 2^64: every one is as good as any other
    if field["dtype"] == "<i8":
        return value
    if not np.isfinite(value).all():
        raise MessageError("an array with a number that is not finite")
    # before squares, which could overflow
    if value.size and not np.abs(value).max() <= largest_norm:
        raise MessageError(f"an array with a number beyond {largest_norm:g}")
    if not np.linalg.norm(value) <= largest_norm:
        raise MessageError(f"an array of norm {np.linalg.norm(value):.3g}; at most {largest_norm:g} is allowed")
    return value


def packed_array(value: np.ndarray) -> bytes:
    """As the content of something sealed."""
    return encoded(array(value))


def unpacked_array(content: bytes, shape: Sequence[int]) -> np.ndarray:
    field = decoded(content)
    if not _is_array("<f8", field):
        raise MessageError("something sealed that is no array")
    return numbers(field, shape)


def _purpose(kind: str) -> bytes:
    return b"message " + kind.encode()


def _plain(value: Any) -> Any:
    return array(value) if isinstance(value, np.ndarray) else value


def encoded(content: Any) -> bytes:
    packed: Any = msgpack.packb(content)
    return packed


def decoded(content: bytes) -> Any:
    try:
        return msgpack.unpackb(content, raw=False, strict_map_key=True)
    except Exception as error:
        # msgpack raises what its parts raise: ValueError, its own, UnicodeDecodeError, ...
        raise MessageError(f"a packet that cannot be decoded ({type(error).__name__})") from None


# --- types of fields ------------------------------------------------------------------------------------------------


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_round(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_ROUNDS


def _is_bytes(most: int, value: Any) -> bool:
    return isinstance(value, bytes) and 0 < len(value) <= most


def _is_array(dtype: str, value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"shape", "dtype", "data"} or value["dtype"] != dtype:
        return False
    shape, data = value["shape"], value["data"]
    if not isinstance(shape, list) or len(shape) > 4 or not isinstance(data, bytes):
        return False
    fits = all(type(length) is int and 0 <= length <= LARGEST_PACKET for length in shape)
    return fits and math.prod(shape) * 8 == len(data)


def _is_heard(value: Any) -> bool:
    """By round, packets of those who released something."""
    return isinstance(value, list) and all(
        isinstance(packets, list) and all(_is_bytes(LARGEST_PACKET, packet) for packet in packets) for packets in value
    )


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and isinstance(content, bytes)
        for name, content in value.items()
    )


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "round": _is_round,
    "rounds": _is_round,
    "first": _is_round,
    # how many rounds a site has heard
    "known": _is_round,
    "heard": _is_heard,
    "model": functools.partial(_is_array, "<f8"),
    "value": functools.partial(_is_array, "<f8"),
    "steps": functools.partial(_is_array, "<i8"),
    "sealed": functools.partial(_is_bytes, LARGEST_PACKET),
    "statement": functools.partial(_is_bytes, 10**5),
    "signature": functools.partial(_is_bytes, 200),
    "files": _are_files,
}
