"""Write the pages' templates into a module: ``python -m server_app.report.generate_templates``.

A Flower bundle holds no HTML, CSS or JavaScript, and has no build step. So the module is committed.
"""

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
GENERATED = Path(__file__).parent / "templates_generated.py"
_HEAD = '''"""Made of ``templates/`` by ``python -m server_app.report.generate_templates``."""

TEMPLATES = {
'''


def generate_module() -> str:
    """Return the source of a module with the content of each template by its file name."""
    entries = (
        f'    "{path.name}": """\\\n{_escape(path.read_text(encoding="utf-8"))}""",\n'
        for path in sorted(TEMPLATES.iterdir())
    )
    return f"{_HEAD}{''.join(entries)}}}\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


if __name__ == "__main__":
    GENERATED.write_text(generate_module(), encoding="utf-8")
