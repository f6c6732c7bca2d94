"""Replay recorded tokens through draft sources, as an engine would have run them.

- `requests`, `shapes`, `text`, `read`: recorded requests from the files that people have
- `serve`: an engine's step loop; who runs in a step, and what each step accepts
- `counts`: counts of steps per request, per tag, and over the course of a trace
- `shards`, `runners`, `checkpoint`, `run`: parts of a trace, where they run, and how a killed run is taken up
- `summary`: a finished replay as measured sources
"""
