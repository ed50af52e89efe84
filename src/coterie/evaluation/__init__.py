"""Private evaluation of classifiers on the parties' own held-out records."""

from coterie.evaluation.noised import Evaluation, PrivateScorer, evaluate
from coterie.evaluation.tables import Metric

__all__ = ["Evaluation", "Metric", "PrivateScorer", "evaluate"]
