"""Zhang & Zhu (2016): dual variable perturbation ("DVP")."""
