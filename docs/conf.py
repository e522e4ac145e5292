"""The documentation site: `make docs` writes it to build/docs. Nothing in it is loaded from elsewhere."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import fedpca

project = "fedpca"
author = "The fedpca authors"
copyright = author
version = release = fedpca.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
html_title = "fedpca"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_copy_source = False
smartquotes_action = "D"  # dashes; quotes stay as they are typed
highlight_options = {"python": {"stripnl": True}}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_enable_extensions = ["dollarmath", "tasklist"]
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. |\$ |> "
copybutton_prompt_is_regexp = True

# Docstrings say `name` for whatever has one: a link where there is a page for it.
default_role = "py:obj"
autodoc_typehints = "none"  # the docstrings say it in words
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [*((name, "params_style") for name in ("Args", "Attributes", "Raises")), "Returns"]
python_maximum_signature_line_length = 88


def math(writer, node: nodes.math | nodes.math_block) -> None:
    """MathML, which browsers draw by themselves."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (math, None), (math, None))
