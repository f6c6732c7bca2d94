"""The page as one file: template, style, our modules, the data, and the drawing library of an installed package."""

import base64
import json
import re
import zlib
from importlib import resources
from typing import Final

from specplan import __version__
from specplan.page.data import page_data

MODULES: Final = ("laws", "answers", "charts", "page")
"""Modules of the page, which import one another by these names."""


def page() -> str:
    """The whole page, which asks the network for nothing.

    Raises
    ------
    ImportError
        Without plotly, which brings the drawing library.
    """
    from plotly.offline import get_plotlyjs  # an extra's package

    library = get_plotlyjs()
    drawn_by = re.search(r"plotly\.js v([\d.]+)", library[:200])
    # A page from disk may import no file: the modules are addresses that hold their own text.
    modules = {name: f"data:text/javascript;base64,{_base64(_asset(f'{name}.js').encode())}" for name in MODULES}
    data = json.dumps(page_data(), separators=(",", ":"), allow_nan=False)
    parts = {
        "VERSION": __version__,
        "DRAWN_BY": drawn_by[1] if drawn_by else "",
        "STYLE": _asset("page.css"),
        "MODULES": json.dumps({"imports": modules}),
        "DATA": _base64(zlib.compress(data.encode(), 9)),
        "LIBRARY": library.replace("</script", "<\\/script"),
    }
    return re.sub(r"\{\{([A-Z_]+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("specplan.page") / "assets" / name).read_text("utf-8")


def _base64(text: bytes) -> str:
    return base64.b64encode(text).decode("ascii")
