"""Cyffers, Bellet & Basu (2023): private ADMM as a noisy fixed-point iteration ("FP")."""
