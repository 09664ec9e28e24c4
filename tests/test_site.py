"""The built book in a real browser: every page at both widths, its links, its search."""

from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import serve
from playwright.sync_api import expect

SITE = Path(__file__).parent.parent / "_build" / "html"
PAGES = sorted(path.stem for path in SITE.glob("chapters/*.html"))
# What the theme does on every page: two search buttons, buttons outside of landmarks, menus without names.
OF_THE_THEME = {"label-content-name-mismatch", "region", "summary-name"}
# Axe would fetch every style sheet once more.
AXE = {"resultTypes": ["violations"], "preload": False}
# Half of the time would go into the contrast of coloured code. Its colours depend on the kinds of its words and on
# where it stands: blocks whose kinds were all seen lose them.
PLAIN_CODE = """(seen) => {
  for (const pre of document.querySelectorAll("div.highlight pre")) {
    const place = pre.closest(".cell_output") ? "output" : "input";
    const kinds = [...pre.querySelectorAll("span")].map((word) => `${place} ${word.className}`);
    if (kinds.every((kind) => seen.includes(kind))) pre.replaceChildren(pre.textContent);
    else seen.push(...new Set(kinds));
  }
  return [...new Set(seen)];
}"""

pytestmark = pytest.mark.slow
built = pytest.mark.skipif(not PAGES, reason="the book is not built: make book")


@pytest.fixture(scope="module")
def site():
    server = serve(SITE)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@built
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_every_page_is_accessible_and_fits(browser, site, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    faults, seen = [], []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("response", lambda response: response.status < 400 or faults.append((response.status, response.url)))
    page.on("request", lambda request: request.url.startswith((site, "data:", "blob:")) or faults.append(request.url))
    for name in PAGES:
        page.goto(f"{site}/chapters/{name}.html")
        page.evaluate("window.MathJax?.startup?.promise")
        seen = page.evaluate(PLAIN_CODE, seen)
        page.wait_for_timeout(400)  # the theme looks for scrollable tables a moment after the page has changed
        for violation in Axe().run(page, options=AXE).response["violations"]:
            if violation["id"] not in OF_THE_THEME:
                faults.append((name, violation["id"], violation["nodes"][0]["html"]))
        if page.evaluate("document.documentElement.scrollWidth") > width:
            faults.append((name, "is wider than the window"))
    context.close()
    assert not faults


@built
def test_no_link_inside_the_site_is_dead(browser, site):
    page = browser.new_page()
    anchors, linked = {}, set()
    for name in PAGES:
        page.goto(f"{site}/chapters/{name}.html")
        anchors[f"/chapters/{name}.html"] = set(page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)"))
        linked |= {(name, a) for a in page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)")}
    page.close()
    dead = set()
    for name, address in linked:
        if address.startswith(site):
            target, fragment = urldefrag(address)
            path = unquote(urlsplit(target).path)
            exists = (SITE / path.lstrip("/")).exists()
            if not exists or (fragment and path in anchors and unquote(fragment) not in anchors[path]):
                dead.add((name, address))
    assert len(linked) > 10 * len(PAGES)
    assert not dead


@built
def test_search_finds_a_chapter(browser, site):
    page = browser.new_page()
    page.goto(f"{site}/search.html?q=suffix+sum")
    expect(page.locator("#search-results a", has_text="The closed form").first).to_be_visible()
    page.close()
