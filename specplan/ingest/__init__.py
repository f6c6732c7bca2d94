"""Read what running engines print: metrics, logs, start-up reports."""
