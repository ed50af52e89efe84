"""What belongs to the papers: their bounds as printed, errata, convergence, and their figures computed again."""
