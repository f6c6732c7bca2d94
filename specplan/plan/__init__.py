"""Compose formulas and values into answers: frozen results that tables, JSON and plots render."""
