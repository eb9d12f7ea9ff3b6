#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation as a reader gets it: links and anchors lead somewhere, figures and call graphs are there; and in a
headless Chromium, at the width of a phone and of a desktop, every image loads and nothing sticks out to the side.

Usage: site.py HTML_FOLDER. Without Chromium the part that needs it is left out, and said.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

WIDTHS = (390, 1280)
FIGURES = ("accuracy.svg", "layers.svg", "memory.svg", "speed.svg", "isa.svg")
CALLS_GRAPHED = "nbl_api_cache_create"  # a function that calls others of ours
READ = re.compile(r"index|md_|nibble|structnbl__(api__v1|cache__)")  # looked at: documents and the public headers
TIMEOUT_S = 180


class Page(HTMLParser):
    """Ids that a page has, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.uses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is not None and (name == "id" or (name == "name" and tag == "a")):
                self.ids.add(value)
            elif value and (name in ("href", "src") or (name == "data" and tag == "object")):
                self.uses.append(value)


def check_links(folder: Path) -> list[str]:
    """Links and images that lead nowhere."""
    pages = {p.name: Page(p.read_text(errors="replace")) for p in sorted(folder.glob("*.html"))}
    found = set()
    for name, page in pages.items():
        for use in page.uses:
            parts = urlsplit(use)
            if parts.scheme or parts.netloc:
                continue
            target = unquote(parts.path) or name
            if not (folder / target).exists():
                found.add(f"{name}: {use} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.add(f"{name}: {use} is no anchor")
    return sorted(found) if pages else [f"{folder} has no pages"]


def check_graphs(folder: Path) -> list[str]:
    """Figures, and the graph of what one function calls."""
    found = [f"there is no figure {name}" for name in FIGURES if not (folder / name).is_file()]
    graphs = [p for p in folder.glob("*_cgraph.svg") if CALLS_GRAPHED in p.read_text(errors="replace")]
    return found if graphs else [*found, f"no call graph shows {CALLS_GRAPHED}"]


LOOK = """<!doctype html><meta charset="utf-8"><body><script>
const pages = %s, widths = %s, found = [];
function look(frame, page, width) {
  const d = frame.contentDocument, where = page + " at " + width + ": ";
  const root = d.documentElement;
  if (!d.querySelector(".contents, .textblock")) found.push(where + "is empty");
  if (root.scrollWidth > root.clientWidth) {
    const scrolls = e => e && e !== root && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
    const wide = [...d.body.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > width + 1 &&
                                                            !scrolls(e.parentElement));
    found.push(where + root.scrollWidth + " pixels wide, first <" + (wide[0] ? wide[0].tagName + " class=" +
      wide[0].className : "?") + ">");
  }
  for (const i of d.images) if (!i.complete || i.naturalWidth === 0) found.push(where + i.src + " does not load");
}
async function main() {
  for (const page of pages) for (const width of widths) {
    const frame = document.createElement("iframe");
    frame.style.width = width + "px"; frame.style.height = "900px"; frame.style.border = 0;
    frame.src = page;
    await new Promise(done => { frame.onload = done; document.body.append(frame); });
    for (const i of frame.contentDocument.images) i.loading = "eager";
    await Promise.all([...frame.contentDocument.images].map(i => i.decode().catch(() => 0)));
    look(frame, page, width);
    frame.remove();
  }
  await fetch("/done", {method: "POST", body: JSON.stringify({looked: pages.length * widths.length, found})});
}
main();
</script>"""


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the pages and the program that looks at them, and takes what it reports."""

    def __init__(self, *args: object, look: bytes, report: dict, done: threading.Event, **rest: object) -> None:
        self.look, self.report, self.done = look, report, done
        super().__init__(*args, **rest)

    def do_GET(self) -> None:
        """A page."""
        if self.path != "/look":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.look)

    def do_POST(self) -> None:
        """The report."""
        self.report.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()
        self.done.set()

    def log_message(self, *args: object) -> None:
        """Nothing."""


def browse(chromium: str, folder: Path, pages: list[str]) -> list[str]:
    """What Chromium sees."""
    report: dict = {}
    done = threading.Event()
    look = (LOOK % (json.dumps(pages), json.dumps(WIDTHS))).encode()
    handler = functools.partial(Server, directory=str(folder), look=look, report=report, done=done)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, tempfile.TemporaryDirectory() as home:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--disable-gpu", "--no-first-run", "--window-size=1400,1000",
                   f"--user-data-dir={home}"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # its sandbox refuses root
        address = f"http://127.0.0.1:{server.server_address[1]}/look"
        with subprocess.Popen([chromium, *options, "--remote-debugging-port=0", address], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            finished = done.wait(TIMEOUT_S)
            process.terminate()
        server.shutdown()
    if not finished:
        return [f"{chromium} has not reported in {TIMEOUT_S} s"]
    print(f"site: looked at {report['looked']} views of {len(pages)} pages in Chromium")
    return report["found"]


def main(folder: Path) -> None:
    """Command line entry."""
    found = check_links(folder) + check_graphs(folder)
    chromium = shutil.which("chromium")
    pages = sorted(p.name for p in folder.glob("*.html") if READ.match(p.name) and "source" not in p.name)
    if chromium is None:
        print("site: not looked at in a browser: there is no chromium here (Debian package chromium)")
    else:
        found += browse(chromium, folder, pages)
    for finding in found:
        print(f"site: {finding}")
    print(f"site: {'FAILED' if found else 'ok'} ({len(found)} findings)")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().splitlines()[-1])
    main(Path(sys.argv[1]))
