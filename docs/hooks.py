"""Build the site: add pages from outside docs, and convert docstrings to Markdown."""

import re
from inspect import formatannotation, signature
from os.path import relpath
from pathlib import Path
from textwrap import indent
from typing import Any

import griffe
from fedquorum.flower.strategies import DropInStrategy
from markdown import Extension, Markdown
from markdown.inlinepatterns import HtmlInlineProcessor
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
EXTERNAL_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/quickstart/README.md": "quickstart.md",
}
"""Files of the repository that are also pages of the site, by path."""

HTML_PATTERN = r"(</?autoref\b[^>]*>|<!--.*?-->)"
LINK_PATTERN = re.compile(r"(?<=\]\()[^)\s]+(?=\))")


class ListItemPreprocessor(Preprocessor):
    """Let a list item follow an item that ends with a paragraph, without a blank line."""

    ITEM_END = re.compile(r"(\n\n(?: {2,}\S.*\n)+)(?=(?:[-*+]|\d+\.) )")

    def run(self, lines: list[str]) -> list[str]:
        """Add the blank line that Python-Markdown needs."""
        return self.ITEM_END.sub(r"\1\n", "\n".join(lines)).split("\n")


class GitHubMarkdown(Extension):
    """Read Markdown as GitHub does, as far as these pages need it.

    Lists nest by two spaces, and text in angle brackets, such as <p, r>, is no HTML.
    """

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Change the parser, before other extensions add to it."""
        md.tab_length = 2
        md.build_parser()
        md.preprocessors.deregister("html_block")
        # The priority of 20 puts it after blocks of code.
        md.preprocessors.register(ListItemPreprocessor(md), "next_items", 20)
        md.inlinePatterns.register(HtmlInlineProcessor(HTML_PATTERN, md), "html", 90)
        self.md = md
        md.registerExtension(self)

    def reset(self) -> None:
        """Let four spaces indent code, after other extensions have changed the parser."""
        self.md.parser.blockprocessors["code"].tab_length = 4


def on_config(config: MkDocsConfig) -> None:
    """Read Markdown as GitHub does."""
    config.markdown_extensions.insert(0, GitHubMarkdown())


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages from outside docs."""
    for path, page in EXTERNAL_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to pages of the site, or to the repository if there is no page."""

    def resolve_link(match: re.Match[str]) -> str:
        path, _, anchor = match[0].partition("#")
        if not path or "://" in path:
            return match[0]
        target = (Path(str(page.file.abs_src_path)).parent / path).resolve()
        name = target.relative_to(ROOT).as_posix()
        uri = EXTERNAL_PAGES.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(uri):
            link = relpath(uri, Path(page.file.src_uri).parent)
        else:
            kind = "tree" if target.is_dir() else "blob"
            link = f"{config.extra['repository']}/{kind}/main/{name}"
        return f"{link}#{anchor}" if anchor else link

    return LINK_PATTERN.sub(resolve_link, markdown)


class DocstringExtension(griffe.Extension):
    """Convert the library's docstrings to Markdown, and its rules' declarations to signatures."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Replace a parameter's declaration by its default."""
        declaration = attr.value
        if not isinstance(declaration, griffe.ExprCall):
            return
        name = str(declaration.function)
        if name == "parameter":
            attr.value = declaration.arguments[0]
        elif name == "injected_value":
            keywords = [a.value for a in declaration.arguments if isinstance(a, griffe.ExprKeyword)]
            attr.value = keywords[0] if keywords else None

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show the keywords of the named strategies, and convert all docstrings."""
        if pkg.name == "fedquorum":
            for strategy in DropInStrategy.__subclasses__():
                _add_rule_keywords(strategy, pkg)
        _convert_docstrings(pkg)


def _add_rule_keywords(strategy: type[DropInStrategy], library: griffe.Module) -> None:
    """Add the keywords of a named strategy's rules to its signature and docstring."""
    descriptions = {
        item.name: item.description
        for rule in strategy.entry.rule_classes
        for section in _get_docstring(_find_object(rule, library)).parse(
            "numpy", warn_unknown_params=False
        )
        if section.kind is griffe.DocstringSectionKind.parameters
        for item in section.value
    }
    names = [field.name for field in strategy.entry.parameters]
    parameters = signature(strategy).parameters
    types = {name: formatannotation(parameters[name].annotation) for name in names}
    kind = griffe.ParameterKind
    keywords = [
        griffe.Parameter(
            name,
            annotation=types[name],
            kind=kind.keyword_only,
            default=repr(parameters[name].default),
        )
        for name in names
    ]
    keywords.append(griffe.Parameter("keywords", annotation="Any", kind=kind.var_keyword))
    strategy_object = _find_object(strategy, library)
    strategy_object["__init__"] = griffe.Function(
        "__init__", parameters=griffe.Parameters(*keywords)
    )
    lines = [f"{name} : {types[name]}\n{indent(descriptions[name], ' ' * 4)}" for name in names]
    common = "Those of all strategies: ``fedquorum.flower.strategies.DropInStrategy``."
    lines.append(f"**keywords : Any\n    {common}")
    section = "\n".join(["Parameters", "-" * 10, *lines])
    _get_docstring(strategy_object).value += f"\n\n{section}"


def _find_object(kind: type[Any], library: griffe.Module) -> griffe.Object:
    """Return the site's object of a class in the library."""
    path = f"{kind.__module__}.{kind.__name__}".removeprefix("fedquorum.")
    target: griffe.Object = library[path]
    return target


def _get_docstring(target: griffe.Object) -> griffe.Docstring:
    """Return the docstring of an object.

    Raises
    ------
    ValueError
        If the object has none.
    """
    if target.docstring is None:
        raise ValueError(f"{target.path} needs a docstring")
    return target.docstring


def _convert_docstrings(target: griffe.Object) -> None:
    """Convert the docstrings of an object and of all its members."""
    if target.docstring:
        target.docstring.value = _to_markdown(target.docstring.value)
    for member in target.members.values():
        if isinstance(member, griffe.Object):
            _convert_docstrings(member)


def _to_markdown(text: str) -> str:
    """Return a docstring with sessions as code, and with links to the names in it."""
    text = re.sub(r"\s+# doctest: .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(\w.* : )\{(.+)\}", r"\1\2", text, flags=re.MULTILINE)  # no defaults
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"^>>> ", "    >>> ", text, flags=re.MULTILINE)
    link = r'<autoref identifier="\1" optional>`\1`</autoref>'
    return re.sub(r"``((?:fedquorum|fedquorum_app)\.[\w.]+)``", link, text)
