"""Learn one model among parties who do not show each other their data, with a privacy loss that can be checked."""

__version__ = "0.1.0"
