"""The page in a real browser: Debian's Chromium, without a network."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from specplan.page.build import page

    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(), "utf-8")
    return path


@pytest.fixture(scope="module")  # playwright's loop would be in the way of other tests
def browser() -> Iterator[Any]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("no Chromium: install it (Debian: apt-get install chromium), or leave these out: -m 'not browser'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Any]:
    """Opens the page from disk at a fragment; at the end, nothing was asked of a network and nothing failed."""
    contexts, asked, wrong = [], [], []

    def open_at(fragment: str = "", *, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True, reduced_motion="reduce"
        )
        contexts.append(context)
        shown = context.new_page()
        shown.on("request", lambda request: asked.append(request.url))
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        shown.goto(page_file.as_uri() + fragment)
        shown.wait_for_function("globalThis.specplan && document.querySelector('#capacity .scatterlayer path')")
        return shown

    yield open_at
    for context in contexts:
        context.close()
    assert wrong == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
