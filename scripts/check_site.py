"""Check a built site: every link leads somewhere, nothing comes from a network.

``python -m scripts.check_site build/site`` reads every page as a browser would from the
folder, and exits with 1 after a line for each link, picture, script or anchor that is
not there, and for each that a page would load from the network.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["Page", "main", "problems"]


class Page(HTMLParser):
    """What a page links to, loads and can be linked at.

    Attributes
    ----------
    links, loaded : list of str
        Addresses of ``<a>``, and of all else.
    anchors : set of str
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {"", "__top"}
        self.feed(text)

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        """Note its addresses and its id."""
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "link" and values.get("rel") in ("canonical", "prev", "next"):
            return
        for key in ("href", "src"):
            if key in values:
                (self.links if tag == "a" else self.loaded).append(values[key])


def problems(site: Path) -> list[str]:
    """All that is wrong with a site, a line each.

    Parameters
    ----------
    site : Path
        The folder of its index.html.
    """
    pages = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.resolve().rglob("*.html"))
    }
    found = []
    for path, page in pages.items():
        # a server shows it at any address, so its own are absolute
        if path.name == "404.html":
            continue
        name = path.relative_to(site.resolve())
        for address in page.links + page.loaded:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if parts.scheme != "data" and address in page.loaded:
                    found.append(f"{name}: loads {address}")
                continue
            target = path
            if parts.path:
                target = (path.parent / unquote(parts.path)).resolve()
            if not target.is_file():
                found.append(f"{name}: {address} is not there")
            elif (
                target in pages and unquote(parts.fragment) not in pages[target].anchors
            ):
                found.append(f"{name}: {address} has no such anchor")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the folder that is named; the exit status."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    site = Path(folder)
    if not (site / "index.html").is_file():
        print(f"error: there is no site in {site}", file=sys.stderr)
        return 2
    found = problems(site)
    for line in found or [f"{site}: every link leads somewhere"]:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
