"""Compose formulas, pools and step times into answers: frozen results that tables, JSON and plots render."""
