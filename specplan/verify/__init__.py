"""Accept tokens: one file per rule, pure functions of probabilities and uniforms (numpy reference)."""
