"""What can go wrong, by who has to act."""

# characters of a sentence
LONGEST = 1000


def short(value: object) -> str:
    """A value in a sentence, whatever it is."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class CoterieError(Exception):
    """Base of every error this package raises on purpose."""

    def __str__(self) -> str:
        """A sentence, however long what it quotes: files can hold names and values of any length."""
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} [...] {text[-LONGEST // 4 :]}"


class InputError(CoterieError, ValueError):
    """An argument is wrong; the message names it, its value and what is allowed."""


class PrivacyPreconditionError(InputError):
    """A theorem's hypothesis fails, so no privacy statement can be made."""


class LeakError(CoterieError):
    """Data could reach the outside without passing a mechanism."""


class LocalSolveError(CoterieError, RuntimeError):
    """A party could not compute its step; nothing of that step was released."""


class AuditError(CoterieError):
    """A stated loss did not stand up to its audit; nothing was released."""


class PrivacyWarning(UserWarning):
    """Something that must be known before a promise, or a model that comes with it, is relied on."""


class MissingExtraError(CoterieError, ImportError):
    """An optional dependency is needed; the message names the extra."""
