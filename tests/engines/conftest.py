"""Engines between organisations, with real processes on loopback; each needs an environment with its own extra."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sites"))
sys.path.insert(0, str(Path(__file__).parent))
