"""Loops in machine code, made by Numba (the extra `fast`), for what XLA does slowly on a CPU: sparse rows, rows that
are picked, many small problems. Everything here is numbers in, numbers out; without Numba nothing but speed is missing.
"""
