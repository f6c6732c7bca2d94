"""Read what running engines print: metrics, logs, start-up reports.

- `read`: one origin, told apart by its shape; `fetch`: an address, in bounded time and size
- `prometheus`, `logs`, `bench`, `responses`: figures of speculation, each with the engine's definition and its meaning
- `rounded`: the counts behind rounded figures
- `observation`, `summary`: what was read, and as measured sources
- `startup_logs`: memory and cache of an engine that starts
"""
