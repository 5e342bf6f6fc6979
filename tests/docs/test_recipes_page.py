"""docs/recipes.md against the recipes that come with the program."""

from __future__ import annotations

import re
from pathlib import Path

from loaderdoctor.recipes import all_recipes

PAGE = Path(__file__).parent.parent.parent / "docs" / "recipes.md"


def test_the_table_has_a_row_for_each_recipe_and_no_other() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## ")[1]
    rows = re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)
    assert sorted(rows) == sorted(recipe.name for recipe in all_recipes())


def test_the_page_names_those_that_need_nothing_but_torch() -> None:
    said = re.search(r"All but (.*?) need torchvision", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert said is not None
    alone = {recipe.name for recipe in all_recipes() if recipe.extra is None}
    assert set(re.findall(r"`([\w-]+)`", said[1])) == alone
