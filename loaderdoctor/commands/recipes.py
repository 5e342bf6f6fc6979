"""`loaderdoctor recipes`: the reference loops, and whether they can run here."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loaderdoctor.recipes import Recipe, all_recipes


def recipes(console: Console | None = None) -> int:
    """List every recipe with what it needs. Returns the exit code."""
    console = console or Console(markup=False)
    found = all_recipes()
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("recipe", no_wrap=True)
    table.add_column("runs here", no_wrap=True)
    table.add_column("what it is")
    for recipe in found:
        table.add_row(recipe.name, _ready(recipe), _about(recipe))
    console.print(table)
    console.print(
        Text(
            "\nloaderdoctor sweep --recipe NAME   tries every combination of loader settings\n"
            "loaderdoctor sweep --recipe FOLDER runs your own (docs/recipes.md)"
        )
    )
    return 0


def _ready(recipe: Recipe) -> Text:
    if not recipe.missing:
        return Text("yes", style="green")
    return Text(f"needs {', '.join(recipe.missing)}", style="yellow")


def _about(recipe: Recipe) -> Text:
    return Text.assemble(recipe.summary, "\n", (str(recipe.script), "dim"))
