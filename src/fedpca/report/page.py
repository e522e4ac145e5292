"""The page: sections as one HTML file that needs nothing else."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedpca import __version__
from fedpca._util.files import atomic_write
from fedpca.report.figures import inline, save
from fedpca.report.layout import Choice, Section, Table

try:
    from jinja2 import Environment, StrictUndefined
except ImportError as error:
    raise ImportError("a report needs jinja2: pip install 'fedpca[report]'.") from error

_HERE = Path(__file__).parent


def write_page(path: Path, title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> None:
    """Write the page, whole or not at all.

    Args:
        facts: what there is to know at a glance, each with its name.
    """
    environment = Environment(
        autoescape=True,  # names of others are text, never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests |= {
        "choice": lambda item: isinstance(item, Choice),
        "table": lambda item: isinstance(item, Table),
    }
    page, style = (
        _HERE.joinpath(name).read_text(encoding="utf-8") for name in ("page.html.jinja", "style.css")
    )
    text = environment.from_string(page).render(
        title=title, facts=facts, sections=sections, style=style, svg=inline, version=__version__
    )
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_pictures(folder: Path, sections: Sequence[Section]) -> None:
    """Write every chart as .png and .svg."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".fedpca-") as aside:  # all of them, or none
        for section in sections:
            for chart in section.charts:
                for ending in (".png", ".svg"):
                    save(chart.figure, Path(aside) / f"{chart.name}{ending}")
        folder.mkdir(exist_ok=True)
        for path in Path(aside).iterdir():
            os.replace(path, folder / path.name)
