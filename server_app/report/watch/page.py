"""The page that follows a run: one constant document, which asks the server for what is new."""

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from server_app.report.page import packed_plotly, templates


@dataclass(frozen=True)
class WatchPage:
    """The page, and the policy under which a browser runs its scripts and no others."""

    content: bytes
    policy: str

    @classmethod
    def made(cls) -> "WatchPage":
        """Return the page: nothing in it comes from a run."""
        style, script = (
            templates().get_template(name).render() for name in ("watch.css", "watch.js")
        )
        text = (
            templates()
            .get_template("watch.html")
            .render(
                style=Markup(style),  # noqa: S704 - files of this package
                script=Markup(script),  # noqa: S704
                plotly=packed_plotly(),
            )
        )
        policy = {
            "default-src": "'none'",
            "script-src": f"{_hash(script)} {_hash(get_plotlyjs())}",
            "style-src": " ".join(map(_hash, (style, *_texts_of_plotly()))),
            "img-src": "data:",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        return cls(text.encode(), "; ".join(f"{name} {value}" for name, value in policy.items()))


def _texts_of_plotly() -> Iterator[str]:
    """Yield what Plotly.js writes into elements as it stands in its source: its styles."""
    for text in re.finditer(r"""\.textContent=(['"])((?:(?!\1)[^\\])*)\1""", get_plotlyjs()):
        yield text[2]


def _hash(source: str) -> str:
    """Return what names an inline script or style in a policy."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
