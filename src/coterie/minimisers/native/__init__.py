"""Minimisations with logistic loss in machine code, made by Numba: sparse rows, and many small parties."""
