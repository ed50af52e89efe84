"""Print constraints that pin every dependency to the lowest version that pyproject.toml allows.

tools/lowest_versions.py [EXTRA ...]
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirements: list[str]) -> list[str]:
    pinned = []
    for requirement in requirements:
        name, _, bound = requirement.partition(">=")
        if not bound:
            raise SystemExit(f"pyproject.toml: {requirement!r} has no lowest version")
        digits = re.match(r"[0-9.]+", bound)
        assert digits is not None
        pinned.append(f"{name.partition('[')[0].strip()}=={digits[0]}")
    return pinned


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text())["project"]
    wanted = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in sys.argv[1:])]
    print("\n".join(line for requirements in wanted for line in lowest(requirements)))
