"""Learn one model among parties who do not show each other their data, with a privacy loss that can be checked."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# JAX takes a second to load, so names are fetched when they are first used
_HOME = {
    "Federation": "coterie.data",
    "Schema": "coterie.data",
    "load_adult": "coterie.data",
    "load_heart": "coterie.data",
    "Problem": "coterie.problems",
    "Privacy": "coterie.promise",
    "PrivateLasso": "coterie.estimators",
    "PrivateLinearSVC": "coterie.estimators",
    "PrivateLogisticRegression": "coterie.estimators",
    "PrivateRidge": "coterie.estimators",
    "PrivateScorer": "coterie.evaluation",
    "SchemaEncoder": "coterie.estimators",
    "Spending": "coterie.spending",
    "evaluate": "coterie.evaluation",
    "infer": "coterie.inference",
    "Plan": "coterie.plan",
    "Planner": "coterie.planner",
    "Schedule": "coterie.values",
    "Seeded": "coterie.privacy.noise",
    "SystemEntropy": "coterie.privacy.noise",
    "Topology": "coterie.network.topology",
    "Transcript": "coterie.transcript",
    "run": "coterie.engines.in_process",
    "run_many": "coterie.engines.in_process",
}

if TYPE_CHECKING:
    from coterie.data import Federation, Schema, load_adult, load_heart
    from coterie.engines.in_process import run, run_many
    from coterie.estimators import (
        PrivateLasso,
        PrivateLinearSVC,
        PrivateLogisticRegression,
        PrivateRidge,
        SchemaEncoder,
    )
    from coterie.evaluation import PrivateScorer, evaluate
    from coterie.inference import infer
    from coterie.network.topology import Topology
    from coterie.plan import Plan
    from coterie.planner import Planner
    from coterie.privacy.noise import Seeded, SystemEntropy
    from coterie.problems import Problem
    from coterie.promise import Privacy
    from coterie.spending import Spending
    from coterie.transcript import Transcript
    from coterie.values import Schedule

__all__ = [
    "Federation",
    "Plan",
    "Planner",
    "Privacy",
    "PrivateLasso",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateRidge",
    "PrivateScorer",
    "Problem",
    "Schedule",
    "Schema",
    "SchemaEncoder",
    "Seeded",
    "Spending",
    "SystemEntropy",
    "Topology",
    "Transcript",
    "evaluate",
    "infer",
    "load_adult",
    "load_heart",
    "run",
    "run_many",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
