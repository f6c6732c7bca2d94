"""How long a step takes: passes from shapes, an engine's time around them, calibrations and measured tables."""
