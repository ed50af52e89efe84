"""Zhang, Khalili & Liu (2019): recycled ADMM ("MR")."""
