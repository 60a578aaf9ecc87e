"""The text of an answer: what wraps it is taken off, and different spellings of one thing become one spelling."""

from __future__ import annotations

import itertools
import re
import unicodedata
from fractions import Fraction

from llm_arena.parsing import boxed, stream_safe

_OPEN, _CLOSE = "([{", ")]}"
_RAISED = {"<super>": "^", "<sub>": "_"}
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_ELLIPSIS = re.compile(r"\.\.\.+|\u2026|\\[lc]?dots[a-z]?(?![A-Za-z])")
_OVERLINED = re.compile(r"(?<![0-9])([0-9]{0,30})\.([0-9]{0,30})\\(?:overline|bar|dot)\s*\{([0-9]{1,30})\}(?![0-9\\.])")
_ENDLESS = re.compile(r"(?<![0-9])([0-9]{0,30})\.([0-9]{0,30}?)([0-9]{1,30}?)\3{2,}\\ldots")
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
    "\u2205": "\\emptyset ",
    "\u2044": "/",
    "\u2208": "\\in ",
    "\u2264": "\\le ",
    "\u2265": "\\ge ",
    "\u2260": "\\ne ",
    "\u00b1": "\\pm ",
    "\u00b0": "",
}
DOLLAR = "\u00a4"
"""Stands for the sign of a currency; a bare dollar sign may be mathematics' quotation mark, and is taken off."""
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
        (r"\\not\s*=", r"\\ne"),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\(?:emptyset|varnothing)(?![A-Za-z])", r"\\{\\}"),
        (r"\\(?:[lr]?vert|mid)(?![A-Za-z])", "|"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\mathrm\{\s*([ie])\s*\}", r" \1 "),
        (r"\\(?:textbf|textit|textrm|mathrm|mathbf|mbox)(?=\{)", r"\\text"),
        (r"\\text\{\s*\(([A-Za-z])\)\s*\}", r"\\text{\1}"),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})", ""),
        (r"\\%", "%"),
        (r"\\\$", DOLLAR),
        (r"\$", ""),
        (r"(?<=[0-9])\{,\}(?=[0-9]{3})", ""),
        (r"\*\*", "^"),
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])(pi|infinity|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp)(?![A-Za-z])", r"\\\1 "),
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
    text = re.sub(r"(?<=[A-Za-z]{2})\\ldots$", "", _ELLIPSIS.sub(r"\\ldots", text).strip())
    text = text.strip("*").strip().rstrip(".,;").strip()
    if text.startswith(("\\(", "\\[")) and text.endswith(("\\)", "\\]")):
        text = text[2:-2]
    text = _unraised(text)
    text = _VULGAR.sub(lambda half: _fraction(half.group()), text)
    # a root without brackets reaches over one number or letter, and in \u221a2x nobody knows
    text = re.sub(r"\u221a\s*(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?|[A-Za-z])(?![0-9A-Za-z.]))", r"\\sqrt{\1\2}", text)
    text = unicodedata.normalize("NFKC", stream_safe("".join(_SYMBOLS.get(char, char) for char in text)))
    for pattern, new in _RULES:
        text = pattern.sub(new, text)
    text = _OVERLINED.sub(_repeating, _ENDLESS.sub(_repeating, text))
    text = text.strip().rstrip(".,;").strip()
    if not re.search(r"[()\[\]]|\\\{", text):  # in brackets a comma separates, else it may group digits
        text = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), text)
    return text


def _unraised(text: str) -> str:
    """Returns `text` with raised and lowered characters as `^{...}` and `_{...}`; folded, 10\u2082 would become 102."""
    pieces: list[str] = []
    for mark, run in itertools.groupby(
        text, key=lambda char: _RAISED.get(unicodedata.decomposition(char).split(" ")[0])
    ):
        inside = "".join(run)
        pieces.append(inside if mark is None else f"{mark}{{{unicodedata.normalize('NFKC', inside)}}}")
    return "".join(pieces).replace("\u2212}", "-}")


def _repeating(decimal: re.Match[str]) -> str:
    r"""Returns the fraction that a number with repeating decimals is; `0.333\ldots` repeats what it has thrice."""
    whole, fixed, repeated = decimal.groups()
    value = Fraction(int(whole + fixed or 0)) + Fraction(int(repeated), 10 ** len(repeated) - 1)
    value /= 10 ** len(fixed)
    return f"(\\frac{{{value.numerator}}}{{{value.denominator}}})"


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
