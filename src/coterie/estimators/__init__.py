"""Private linear models with the interface of scikit-learn."""

from coterie.errors import MissingExtraError

try:
    import sklearn  # noqa: F401
except ImportError:
    raise MissingExtraError("the estimators need scikit-learn: pip install 'coterie[sklearn]'") from None

from coterie.estimators.classifiers import PrivateLinearSVC, PrivateLogisticRegression
from coterie.estimators.encoder import SchemaEncoder
from coterie.estimators.regressors import PrivateLasso, PrivateRidge

__all__ = ["PrivateLasso", "PrivateLinearSVC", "PrivateLogisticRegression", "PrivateRidge", "SchemaEncoder"]
