"""Zhang, Khalili & Liu (2018): M-ADMM and penalty perturbation ("PP")."""
