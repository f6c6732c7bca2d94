"""The words the user types: one module per command, imports of rooms inside each command, no computing."""
