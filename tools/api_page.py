"""Writes docs/api.md: every public name of `coterie`, with its signature and docstring.

Run: python tools/api_page.py
"""

import inspect
import re
from pathlib import Path

import coterie

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
HEAD = """# API

Everything that `import coterie` offers; `tools/api_page.py` writes this page from the docstrings. Names below
`coterie.` that are not here are reached by their modules ([architecture](architecture.md)); commands are on
[their own page](commands.md).
"""


def entry(name: str) -> str:
    thing = getattr(coterie, name)
    lines = [f"## {name}", "", f"`from coterie import {name}`, defined in `{thing.__module__}`", ""]
    lines += ["```text", signature(name, thing), "```", ""]
    lines += ["```text", inspect.getdoc(thing) or "", "```", ""] if own_docstring(thing) else []
    if inspect.isclass(thing):
        rows = [(member, first_sentence(value)) for member, value in public_members(thing)]
        rows = [row for row in rows if row[1]]
        lines += ["| | |", "|---|---|", *(f"| `{member}` | {text} |" for member, text in rows), ""] if rows else []
    return "\n".join(lines)


def own_docstring(thing) -> bool:
    """A dataclass without one gets its signature as docstring, which stands there already."""
    text = inspect.getdoc(thing) or ""
    return bool(text) and not text.startswith(f"{thing.__name__}(")


def signature(name: str, thing) -> str:
    parameters = []
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name == "self":
            continue
        default = "" if parameter.default is inspect.Parameter.empty else "=" + default_text(parameter.default)
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        parameters.append(f"{star}{parameter.name}{default}")
    one_line = f"{name}({', '.join(parameters)})"
    return one_line if len(one_line) <= 110 else f"{name}(\n    " + ",\n    ".join(parameters) + ",\n)"


def default_text(value) -> str:
    text = repr(value)
    return "..." if text.startswith("<") or " at 0x" in text else text


def public_members(cls):
    for member, value in vars(cls).items():
        if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, (property, classmethod))):
            yield member, value


def first_sentence(value) -> str:
    text = inspect.getdoc(value.fget if isinstance(value, property) else value) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0].replace("|", "\\|")


def page() -> str:
    return HEAD + "\n" + "\n".join(entry(name) for name in sorted(coterie.__all__, key=str.lower))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
