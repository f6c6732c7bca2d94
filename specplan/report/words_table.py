"""Every engine's words of speculation as a Markdown table, generated from the table in use."""

from specplan.values.engine_words import words


def words_markdown() -> str:
    """One row per name and meaning, engine by engine."""
    head = ("engine", "where", "name", "versions", "its definition", "here")
    rows = [(w.engine, w.place, f"`{w.name}`", w.versions, w.meaning, w.ours) for w in words()]
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
