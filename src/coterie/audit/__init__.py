"""Checks of the stated privacy loss that do not trust the proofs behind it."""
