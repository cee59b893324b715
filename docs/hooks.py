"""What the site needs beside mkdocs.yml: pages from outside of docs, and docstrings as Markdown."""

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
"""Files of the repository that are pages of the site as well, by their paths."""

HTML_PATTERN = r"(</?autoref\b[^>]*>|<!--.*?-->)"
LINK_PATTERN = re.compile(r"(?<=\]\()[^)\s]+(?=\))")


class ListItemPreprocessor(Preprocessor):
    """Let an item begin where the one before ends with a paragraph, without a blank line."""

    ITEM_END = re.compile(r"(\n\n(?: {2,}\S.*\n)+)(?=(?:[-*+]|\d+\.) )")

    def run(self, lines: list[str]) -> list[str]:
        """Add the blank line that Python-Markdown needs."""
        return self.ITEM_END.sub(r"\1\n", "\n".join(lines)).split("\n")


class GitHubMarkdown(Extension):
    """Markdown as GitHub reads it, as far as these pages differ.

    Lists nest by two spaces, and what is in angle brackets, such as <p, r>, is text.
    """

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Change the parser, before other extensions add to it."""
        md.tab_length = 2
        md.build_parser()
        md.preprocessors.deregister("html_block")
        md.preprocessors.register(
            ListItemPreprocessor(md), "next_items", 20
        )  # after blocks of code
        md.inlinePatterns.register(HtmlInlineProcessor(HTML_PATTERN, md), "html", 90)
        self.md = md
        md.registerExtension(self)

    def reset(self) -> None:
        """Let code be indented by four spaces, after other extensions have changed the parser."""
        self.md.parser.blockprocessors["code"].tab_length = 4


def on_config(config: MkDocsConfig) -> None:
    """Read Markdown as GitHub does."""
    config.markdown_extensions.insert(0, GitHubMarkdown())


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages from outside of docs."""
    for path, page in EXTERNAL_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site, and otherwise to the repository."""

    def leads_to(link: re.Match[str]) -> str:
        path, _, anchor = link[0].partition("#")
        if not path or "://" in path:
            return link[0]
        target = (Path(str(page.file.abs_src_path)).parent / path).resolve()
        name = target.relative_to(ROOT).as_posix()
        uri = EXTERNAL_PAGES.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(uri):
            to = relpath(uri, Path(page.file.src_uri).parent)
        else:
            to = f"{config.extra['repository']}/{'tree' if target.is_dir() else 'blob'}/main/{name}"
        return f"{to}#{anchor}" if anchor else to

    return LINK_PATTERN.sub(leads_to, markdown)


class DocstringExtension(griffe.Extension):
    """The library's plain docstrings as Markdown, and what its rules declare as signatures."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Put a parameter's default in the place of its declaration."""
        declared = attr.value
        if not isinstance(declared, griffe.ExprCall):
            return
        name = str(declared.function)
        if name == "parameter":
            attr.value = declared.arguments[0]
        elif name == "supplied":
            given = [a.value for a in declared.arguments if isinstance(a, griffe.ExprKeyword)]
            attr.value = given[0] if given else None

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show what the named strategies take, and rewrite all docstrings."""
        if pkg.name == "fedquorum":
            for strategy in DropInStrategy.__subclasses__():
                _add_rule_keywords(strategy, pkg)
        _convert_docstrings(pkg)


def _add_rule_keywords(strategy: type[DropInStrategy], library: griffe.Module) -> None:
    """Give a named strategy the keywords of its rules, described as there."""
    described = {
        item.name: item.description
        for part in strategy.entry.rule_classes
        for section in _get_docstring(_find_object(part, library)).parse(
            "numpy", warn_unknown_params=False
        )
        if section.kind is griffe.DocstringSectionKind.parameters
        for item in section.value
    }
    names = [field.name for field in strategy.entry.parameters]
    given = signature(strategy).parameters
    types = {name: formatannotation(given[name].annotation) for name in names}
    kind = griffe.ParameterKind
    keywords = [
        griffe.Parameter(
            n, annotation=types[n], kind=kind.keyword_only, default=repr(given[n].default)
        )
        for n in names
    ]
    keywords.append(griffe.Parameter("keywords", annotation="Any", kind=kind.var_keyword))
    shown = _find_object(strategy, library)
    shown["__init__"] = griffe.Function("__init__", parameters=griffe.Parameters(*keywords))
    lines = [f"{name} : {types[name]}\n{indent(described[name], ' ' * 4)}" for name in names]
    others = "**keywords : Any\n    Those of all strategies: ``fedquorum.flower.strategies.DropInStrategy``."
    section = "\n".join(["Parameters", "-" * 10, *lines, others])
    _get_docstring(shown).value += f"\n\n{section}"


def _find_object(kind: type[Any], library: griffe.Module) -> griffe.Object:
    """Return a class of the library as it is read for the site."""
    found: griffe.Object = library[f"{kind.__module__}.{kind.__name__}".removeprefix("fedquorum.")]
    return found


def _get_docstring(target: griffe.Object) -> griffe.Docstring:
    """Return the docstring of what must have one."""
    if target.docstring is None:
        raise ValueError(f"{target.path} needs a docstring")
    return target.docstring


def _convert_docstrings(target: griffe.Object) -> None:
    """Rewrite the docstrings of an object and of all in it."""
    if target.docstring:
        target.docstring.value = _to_markdown(target.docstring.value)
    for member in target.members.values():
        if isinstance(member, griffe.Object):
            _convert_docstrings(member)


def _to_markdown(text: str) -> str:
    """Return a docstring with sessions as code, and links to what it names."""
    text = re.sub(r"\s+# doctest: .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(\w.* : )\{(.+)\}", r"\1\2", text, flags=re.MULTILINE)  # no defaults
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"^>>> ", "    >>> ", text, flags=re.MULTILINE)
    link = r'<autoref identifier="\1" optional>`\1`</autoref>'
    return re.sub(r"``((?:fedquorum|fedquorum_app)\.[\w.]+)``", link, text)
