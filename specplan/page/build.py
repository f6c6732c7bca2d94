"""The page as one file: template, style, our modules, the data, and the drawing library of an installed package."""

import json
import re
from importlib import resources
from typing import Final

from specplan.page.data import page_data
from specplan.report.json_document import plain

_MODULES: Final = ("laws.js", "view.js")
"""In the order in which they need each other; joined into one module, since a page from disk may import nothing."""


def page() -> str:
    """The whole page, which asks the network for nothing.

    Raises
    ------
    ImportError
        Without plotly, which brings the drawing library.
    """
    from plotly.offline import get_plotlyjs  # an extra's package

    data = json.dumps(plain(page_data()), separators=(",", ":"), allow_nan=False)
    parts = {
        "STYLE": _asset("page.css"),
        "DATA": data.replace("</", "<\\/"),
        "LIBRARY": get_plotlyjs().replace("</script", "<\\/script"),
        "SCRIPT": "\n".join(_joined(_asset(name)) for name in _MODULES),
    }
    return re.sub(r"/\*(STYLE|DATA|LIBRARY|SCRIPT)\*/", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("specplan.page") / "assets" / name).read_text("utf-8")


def _joined(module: str) -> str:
    """A module's text without what joins it to the others."""
    return re.sub(r"^export (?=function|const)", "", re.sub(r"^import .*;\n", "", module, flags=re.M), flags=re.M)
