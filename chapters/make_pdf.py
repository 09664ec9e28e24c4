"""Print the built book into one PDF: python chapters/make_pdf.py SITE PDF

Every page of the site is printed by Chromium, in the order of the table of contents, with all solutions open.
Jupyter Book's own way, Sphinx's single page, stops at notebook cells with hidden input.
"""

import functools
import http.server
import io
import shutil
import sys
import threading
from pathlib import Path
from urllib.parse import urldefrag

import yaml
from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import (
    ArrayObject,
    DictionaryObject,
    FloatObject,
    NameObject,
    NullObject,
    TextStringObject,
)
from tqdm import tqdm

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Chromium's processes of a container may run as root and with little shared memory.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
# Without the code that a page folds away and the page's own table of contents; no line of code is cut off.
STYLE = """
    details.hide, #jb-print-toc, .toggle-button { display: none !important }
    pre { white-space: pre-wrap !important; overflow-wrap: anywhere }
"""
FOOTER = """
    <div style="font-size: 7px; width: 100%; text-align: center">
      <span class="title"></span>, page <span class="pageNumber"></span>
    </div>
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        pass


def main(site: Path, target: Path) -> None:
    toc = yaml.safe_load(Path(__file__).parents[1].joinpath("_toc.yml").read_text(encoding="utf-8"))
    print_site(
        site, [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])], target
    )


def print_site(site: Path, files: list[str], target: Path) -> None:
    """Print the pages ``files`` of a site into one PDF, with links between them that stay inside it."""
    browser_path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser_path is None:
        sys.exit(f"expected Chromium, which prints the PDF; none of {', '.join(CHROMIUM)} was found")

    printed = {}
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        page = browser.new_page(color_scheme="light")
        for file in tqdm(files, unit="page"):
            address = f"http://127.0.0.1:{server.server_port}/{file}.html"
            page.goto(address, wait_until="networkidle")
            page.evaluate("window.MathJax?.startup?.promise")
            page.add_style_tag(content=STYLE)
            page.evaluate("document.querySelectorAll('.toggle-hidden > .toggle-button').forEach(b => b.click())")
            content = page.pdf(
                format="A4",
                margin=dict.fromkeys(("top", "bottom", "left", "right"), "16mm"),
                print_background=True,
                scale=0.8,
                outline=True,
                tagged=True,
                display_header_footer=True,
                header_template="<span></span>",
                footer_template=FOOTER,
            )
            printed[address] = page.locator("h1").first.evaluate("h => h.firstChild.textContent"), content
        browser.close()
        server.shutdown()

    book, places = PdfWriter(), {}
    for address, (title, content) in printed.items():
        reader, first = PdfReader(io.BytesIO(content)), len(book.pages)
        places[address] = (first, 0, 842)
        for name, place in reader.named_destinations.items():
            number = first + reader.get_destination_page_number(place)
            places[address + name.replace("/", "#", 1)] = (number, place.left, place.top)
        for link in links(reader.pages):
            if "/Dest" in link:  # names mean something within one page of the site
                uri = TextStringObject(address + link.pop("/Dest").replace("/", "#", 1))
                action = {NameObject("/S"): NameObject("/URI"), NameObject("/URI"): uri}
                link[NameObject("/A")] = DictionaryObject(action)
        book.append(reader, outline_item=title)
    for link in links(book.pages):
        uri = link["/A"]["/URI"]
        number, left, top = places.get(uri) or places.get(urldefrag(uri).url) or (None, 0, 0)
        if number is not None:
            del link["/A"]
            place = (NameObject("/XYZ"), FloatObject(left), FloatObject(top), NullObject())
            link[NameObject("/Dest")] = ArrayObject([book.pages[number].indirect_reference, *place])
    book.write(target)


def links(pages):
    """The pages' links."""
    for page in pages:
        for annotation in page.get("/Annots", ()):
            if annotation.get_object()["/Subtype"] == "/Link":
                yield annotation.get_object()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
