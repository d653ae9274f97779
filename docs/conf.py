"""The documentation site: `sphinx-build -W -c docs . FOLDER` from the root of the repository.

The root is the source folder, so that README, RULES and the tasks' pages are part of the site as they are.
"""

import sys
from importlib import import_module
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import mlbench  # noqa: E402

project = "mlbench"
author = "The mlbench maintainers"
copyright = "2026, the mlbench maintainers"
version = release = mlbench.__version__
root_doc = "docs/index"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
include_patterns = [
    "README.md",
    "RULES.md",
    "submissions/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/measurements/*.md",
    "mlbench/tasks/*/README.md",
    "notebooks/README.md",
    "notebooks/*.ipynb",
]
exclude_patterns = ["**/.*", "build"]
html_theme = "sphinx_book_theme"
html_title = "mlbench"
html_theme_options = {"show_navbar_depth": 1, "home_page_in_toc": True}
html_static_path: list[str] = []
html_copy_source = False
myst_enable_extensions: list[str] = []
html_show_sourcelink = False
myst_heading_anchors = 4
nb_execution_mode = "off"  # the outputs are those of tools/notebooks.py, which a test compares
linkcheck_timeout = 20  # s; `python -m sphinx -b linkcheck -c docs . FOLDER` asks every link to another site
linkcheck_retries = 2
autodoc_typehints = "signature"
suppress_warnings = ["myst.header", "myst.strikethrough"]


class CommandHelp(Directive):
    """The help text of a command, as `--help` prints it: `{command-help} results compare`."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        from mlbench.terminal.args import parser

        module, *verb = self.arguments[0].split()
        command = import_module(f"mlbench.{module}").COMMAND
        text = parser(command, verb[0] if verb else None).format_help()
        return [nodes.literal_block(text, text, language="text")]


class CommandVerbs(Directive):
    """The help texts of all sub-commands of a command, each below a heading."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from mlbench.terminal.args import parser

        command = import_module(f"mlbench.{self.arguments[0]}").COMMAND
        blocks: list[nodes.Node] = []
        for name in command.verbs:
            text = parser(command, name).format_help()
            blocks.append(nodes.rubric("", f"mlbench {self.arguments[0]} {name}"))
            blocks.append(nodes.literal_block(text, text, language="text"))
        return blocks


class ConfigurationFiles(Directive):
    """The YAML files of one group of the configuration, whole: `{configuration} task`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        group = self.arguments[0]
        from mlbench.config import plugins

        own = plugins.own_conf() / "config.yaml"
        paths = [own] if group == "config" else plugins.files(group).values()
        blocks: list[nodes.Node] = []
        for path in paths:
            text = path.read_text()
            blocks.append(nodes.rubric("", path.name if group == "config" else f"{group}/{path.name}"))
            blocks.append(nodes.literal_block(text, text, language="yaml"))
        return blocks


def setup(app):
    app.add_directive("command-help", CommandHelp)
    app.add_directive("command-verbs", CommandVerbs)
    app.add_directive("configuration", ConfigurationFiles)
