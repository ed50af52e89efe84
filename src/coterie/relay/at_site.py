"""What an engine's worker does at a site: it hands envelopes to the site's own process, and its answers back.

The worker has neither records nor keys. Where the site listens is said by the site's own environment, never by whoever
sends a job.
"""

import os
from pathlib import Path

from coterie.errors import InputError
from coterie.site.sockets import Sockets, UnreachableError

# an environment variable: where `coterie site serve` listens
SOCKET = "COTERIE_SITE_SOCKET"
# the site is not being served now
NO_ANSWER = b""


class SiteSocket:
    """The way from a worker to its site."""

    def __init__(self, path: Path) -> None:
        self._sockets = Sockets({"site": path})

    @classmethod
    def of_this_site(cls) -> "SiteSocket":
        path = os.environ.get(SOCKET)
        if not path:
            raise InputError(f"{SOCKET}: got nothing; the path at which `coterie site serve` listens is needed")
        return cls(Path(path))

    def __call__(self, envelope: bytes) -> bytes:
        """The site's answer, or NO_ANSWER."""
        try:
            return self._sockets("site", envelope)
        except UnreachableError:
            return NO_ANSWER
