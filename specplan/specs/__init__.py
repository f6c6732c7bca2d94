"""Parse what users bring (YAML, Hugging Face configs, checkpoint headers) into the frozen values of `specplan.values`."""
