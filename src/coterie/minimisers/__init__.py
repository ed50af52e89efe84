"""Exact minimisers of a party's part of a problem, behind one interface (`base`)."""
