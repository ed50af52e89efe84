"""A session with FLARE's server, in a process of its own: its client prints, and leaves threads behind.

    python -m coterie.relay.nvflare_session USER KIT

Each line on standard input is a command and what it is about (submit FOLDER, status JOB, abort JOB), and is answered by
a line of JSON: {"value": ...}, or {"error": ..., "logged_in": ...}, after which a new process is needed. It ends with
its input.
"""

import json
import os
import sys
from typing import Any

LOGIN_S = 10.0


def answer(session: Any, command: str, about: str) -> str:
    if command == "submit":
        return session.submit_job(about)
    if command == "status":
        return str(session.get_job_meta(about).get("status"))
    session.abort_job(about)
    return ""


def main(user: str, kit: str) -> None:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # what FLARE prints is for a log
    os.dup2(2, 1)
    session = None
    for line in sys.stdin:
        command, about = line.rstrip("\n").split(" ", 1)
        try:
            session = session or new_secure_session(user, kit, timeout=LOGIN_S)
            told = {"value": answer(session, command, about)}
        except BaseException as error:
            # FLARE raises what it likes while its server is away or starting
            said = " ".join(str(error).split())[:300] or type(error).__name__
            told = {"error": said, "logged_in": session is not None}
        print(json.dumps(told), file=answers, flush=True)
    # without waiting for its threads
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
