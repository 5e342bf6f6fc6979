"""mkdocs hook: pages of the site whose source lies outside docs/, and links to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# As a page of docs/ links to it -> the page of the site.
ELSEWHERE = {"../traces/README.md": "traces.md", "../CHANGELOG.md": "changelog.md"}


def on_files(files: Files, *, config: Any) -> Files:
    """Add them as pages of their own."""
    for source, page in ELSEWHERE.items():
        text = (ROOT / source.removeprefix("../")).read_text(encoding="utf-8")
        # What they link to lies in the repository, not on the site.
        content = re.sub(r"\[([^]]+)\]\((?!https?:|#)[^)]+\)", r"\1", text)
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that work in the repository, as the site needs them."""
    for source, page in ELSEWHERE.items():
        markdown = markdown.replace(f"]({source})", f"]({page})")
    return markdown
