"""Hugging Face ``config.json`` to a model: fields in many spellings, one row of a table per architecture."""
