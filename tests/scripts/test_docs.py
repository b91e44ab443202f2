"""The pages of docs/, both READMEs and CONTRIBUTING.md name only files, folders and headings that exist."""

import re
import unittest

from support import ROOT

PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A path in backticks begins with one of these folders, or with a folder of src/ or include/.
TOPS = {"bench", "cmake", "docs", "examples", "include", "python", "scripts", "src", "tests", "web"}
FOLDERS = {path.name: base for base in (ROOT / "include", ROOT / "src") for path in base.iterdir() if path.is_dir()}


def located(name):
    """Where a path that a page names should be; None for text that is no path of this tree."""
    top = name.split("/")[0]
    if top in TOPS:
        return ROOT / name
    if top in FOLDERS:
        return FOLDERS[top] / name
    return None


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            text = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(text.replace(" ", "-"))
    return found


class Docs(unittest.TestCase):
    def test_named_paths_exist(self):
        missing = []
        for page in PAGES:
            for name in re.findall(r"`([\w.-]+/[\w./-]*)(?::[\w:~]+)?`", page.read_text()):
                path = located(name)
                if path is not None and not path.exists():
                    missing.append(f"{page.relative_to(ROOT)}: {name}")
        self.assertEqual(missing, [])

    def test_links_lead_somewhere(self):
        for page in PAGES:
            for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                if "://" in link:
                    continue
                name, _, anchor = link.partition("#")
                target = page.parent / name if name else page
                where = f"{page.relative_to(ROOT)}: {link}"
                self.assertTrue(target.exists(), where)
                if anchor:
                    self.assertIn(anchor, anchors(target), where)


if __name__ == "__main__":
    unittest.main()
