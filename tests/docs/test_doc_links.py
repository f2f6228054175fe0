"""Links of README and docs lead somewhere."""

import re
from pathlib import Path

import pytest

from doc_commands import PAGES, ROOT

MORE = [ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md", *sorted((ROOT / "benchmarks").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)|(?:src|srcset)=\"([^\"]+)\"")


@pytest.mark.parametrize("page", [*PAGES, *MORE], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    targets = [first or second for first, second in LINK.findall(page.read_text())]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_site_leads_to_every_page_of_the_docs() -> None:
    nav = re.findall(r"[\w/*-]+\.md", (ROOT / "mkdocs.yml").read_text())
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    left_out = [str(page) for page in pages if not any(page.match(entry) for entry in nav)]
    assert [page for page in left_out if not page.startswith("decisions/")] == []


def test_the_readme_fits_on_two_screens() -> None:
    text = re.sub(r"```.*?```|<[^>]*>|\]\([^)]*\)", " ", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(re.findall(r"\w[\w.,%]*", text)) < 700
