"""Where compiled programs are kept between processes: folders under `$XDG_CACHE_HOME/coterie`.

Machine code fits one kind of processor, so each kind has a folder of its own.
"""

import hashlib
import os
import platform
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """For whoever runs this alone; None where it cannot be written to."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "coterie" / name / processor()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def processor() -> str:
    """A name for this kind of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kind = [line for line in lines if line.startswith(("model name", "flags", "Features"))][:2]
    return hashlib.sha256("\n".join([platform.machine(), platform.processor(), *kind]).encode()).hexdigest()[:16]
