"""What the papers state, whether it holds, and what follows from it."""
