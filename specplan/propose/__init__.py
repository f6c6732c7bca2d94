"""Guess tokens: one file per real proposer and per engine's rule. Token ids in, a draft out."""
