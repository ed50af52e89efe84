"""Which software made a certificate: versions, and a digest of the package's own files."""

import functools
import hashlib
import platform
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import coterie

_NUMERICS = ("numpy", "scipy", "jax")
ALWAYS = ("coterie", "package_digest", "python", *_NUMERICS)
EXTRAS = ("numba",)  # whose code may have computed releases


@functools.cache
def package_digest() -> str:
    """SHA-256 over the names and contents of all files of the installed package, compiled ones apart."""
    root = Path(coterie.__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix in (".py", ".toml", ".npz", ".md"):
            total.update(
                path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
            )
    return total.hexdigest()


@functools.cache
def software() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in (*_NUMERICS, *EXTRAS) if find_spec(name) is not None}
    return {
        "coterie": coterie.__version__,
        "package_digest": package_digest(),
        "python": platform.python_version(),
        **versions,
    }
