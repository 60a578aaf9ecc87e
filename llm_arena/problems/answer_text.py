"""The text of an answer: what wraps it is taken off, and different spellings of one thing become one spelling."""

from __future__ import annotations

import re
import unicodedata

from llm_arena.parsing import boxed

_OPEN, _CLOSE = "([{", ")]}"
_SUPERSCRIPTS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-")
_SUPERSCRIPT_RUN = re.compile("[\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_THOUSANDS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
_SYMBOLS = {
    "\u2212": "-",
    "\u2013": "-",
    "\u00d7": "\\times ",
    "\u22c5": "\\cdot ",
    "\u00b7": "\\cdot ",
    "\u00f7": "\\div ",
    "\u03c0": "\\pi ",
    "\u221e": "\\infty ",
    "\u222a": "\\cup ",
    "\u2208": "\\in ",
    "\u2264": "\\le ",
    "\u2265": "\\ge ",
    "\u2260": "\\ne ",
    "\u00b1": "\\pm ",
    "\u00b0": "",
}
_RULES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg)(?![A-Za-z])\.?", ""),
        (r"(?<=[0-9])\\[!,](?=[0-9]{3})", ""),
        (r"\\[!,;: ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\leqs?(?:lant)?(?![A-Za-z])", r"\\le"),
        (r"\\geqs?(?:lant)?(?![A-Za-z])", r"\\ge"),
        (r"\\neq(?![A-Za-z])", r"\\ne"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\(?:textbf|textit|textrm|mathrm|mathbf|mbox)(?=\{)", r"\\text"),
        (r"\\text\{\s*\(([A-Za-z])\)\s*\}", r"\\text{\1}"),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})", ""),
        (r"\\%", "%"),
        (r"\\?\$|[\u20ac\u00a3]", ""),
        (r"(?<=[0-9])\{,\}(?=[0-9]{3})", ""),
        (r"\*\*", "^"),
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])(pi|infinity|sin|cos|tan|log|ln|exp)(?![A-Za-z])", r"\\\1 "),
        (r"\\infinity", r"\\infty"),
        (r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"\\frac\s*([0-9A-Za-z])", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}"),
        (r"\s+", " "),
    )
]


def normalize_answer(text: str) -> str:
    r"""Returns an answer without box, dollar signs, emphasis and end punctuation, in one spelling.

    >>> normalize_answer(r"$\boxed{\dfrac12}$.")
    '\\frac{1}{2}'
    """
    if "\\boxed" in text:
        while (inside := boxed(text)) is not None:
            text = inside
        if "\\boxed" in text:  # a box that never closes holds no answer
            return ""
    text = text.strip().strip("*").strip().rstrip(".,;").strip()
    if text.startswith(("\\(", "\\[")) and text.endswith(("\\)", "\\]")):
        text = text[2:-2]
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _VULGAR.sub(lambda half: _fraction(half.group()), text)
    text = re.sub("\u221a\\s*(?:\\(([^()]*)\\)|([0-9A-Za-z]+))", r"\\sqrt{\1\2}", text)
    text = unicodedata.normalize("NFKC", "".join(_SYMBOLS.get(char, char) for char in text))
    for pattern, new in _RULES:
        text = pattern.sub(new, text)
    text = text.strip().rstrip(".,;").strip()
    if not re.search(r"[()\[\]]|\\\{", text):  # in brackets a comma separates, else it may group digits
        text = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), text)
    return text


def _fraction(char: str) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", char).partition("\u2044")
    return f"\\frac{{{top}}}{{{bottom}}}"


def split_top(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Returns (stripped pieces, separators): `text` is cut at each separator that stands outside all brackets."""
    pieces: list[str] = []
    separators: list[str] = []
    begin = at = depth = 0
    while at < len(text):
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        found = separator.match(text, at) if depth == 0 else None
        if found:
            pieces.append(text[begin:at].strip())
            separators.append(found.group())
            begin = at = found.end()
        else:
            at += 1
    return [*pieces, text[begin:].strip()], separators


def whole_group(text: str) -> tuple[str, str] | None:
    r"""Returns (brackets, inside) if one pair of brackets encloses all of `text`, else None.

    >>> whole_group(r"\{1, 4\}")
    ('{}', '1, 4')
    >>> whole_group("(a)(b)") is None
    True
    """
    escaped = text.startswith("\\{") and text.endswith("\\}")
    if not escaped and not (text[:1] in ("(", "[", "{") and text[-1:] in (")", "]", "}")):
        return None
    start = 2 if escaped else 1
    inside = text[start:-start]
    depth = 0
    for char in inside:
        depth += (char in _OPEN) - (char in _CLOSE)
        if depth < 0:
            return None
    return (text[start - 1] + text[-1], inside) if depth == 0 else None
