"""specplan: whether to speculate, with what, how far, and at what price."""

__version__ = "0.1.0"
