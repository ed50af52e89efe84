"""The papers' figures, computed again: curves, pictures, and every claim their text makes about them, checked."""
