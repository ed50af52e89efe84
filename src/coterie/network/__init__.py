"""Who is connected to whom, what travels between them, who works when, and what gets lost."""
