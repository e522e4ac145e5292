"""The documentation site: `make docs` writes it to build/docs. Nothing in it is loaded from elsewhere."""

import sys
from importlib.metadata import version as installed_version

import numpy.typing
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer

project = "fedpca"
author = "The fedpca authors"
copyright = author
version = release = installed_version("fedpca")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
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

# In docstrings `name` links to its entry in the reference, if there is one.
default_role = "py:obj"
autodoc_typehints = "both"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_custom_sections = [("Attributes", "params_style"), "Returns"]
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"  # "On this page" is narrow


def math(writer, node: nodes.math | nodes.math_block) -> None:
    """MathML, which browsers draw by themselves."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def source(app: Sphinx, module: str) -> tuple[str, dict] | None:
    """Let methods that a class inherits be found in the source of the class that defines them."""
    if not module.startswith("fedpca"):
        return None
    analyzer = ModuleAnalyzer.for_module(module)
    analyzer.find_tags()
    tags = dict(analyzer.tags)
    for name, tag in analyzer.tags.items():
        base, _, method = name.partition(".")
        owner = getattr(sys.modules[module], base, None)
        if isinstance(owner, type) and method and "." not in method:
            tags |= {f"{heir.__name__}.{method}": tag for heir in owner.__subclasses__()}
    return analyzer.code, tags


def leave_out_other_packages(app: Sphinx, env: BuildEnvironment) -> None:
    for module in [name for name in env._viewcode_modules if not name.startswith("fedpca")]:
        del env._viewcode_modules[module]


def setup(app: Sphinx) -> None:
    # Before fedpca is imported: shown as ndarray[floating], not ndarray[tuple[Any, ...], dtype[floating]].
    numpy.typing.NDArray = numpy.ndarray
    app.connect("viewcode-find-source", source)
    app.connect("env-updated", leave_out_other_packages)
    app.add_html_math_renderer("mathml", (math, None), (math, None))
