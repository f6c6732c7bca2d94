"""One self-contained page that asks the calculator's questions of any shipped model, draft, card and engine."""
