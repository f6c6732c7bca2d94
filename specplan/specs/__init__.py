"""Parse what users bring (YAML, Hugging Face configs, checkpoint headers) into frozen `specplan.values`."""
