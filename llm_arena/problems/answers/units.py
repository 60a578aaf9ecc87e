r"""Units: which words after a number are one, and which multiply it.

Only what stands in the lists below is a unit. Any other word after a number may change what is said (`5 or more`,
`5 is wrong`), so that such an answer is words and no number.
"""

from __future__ import annotations

import re

SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Word -> power of ten that it multiplies by."""

_MEASURES = (
    "kilometer kilometers kilometre kilometres km kms|meter meters metre metres|millimeter millimeters mm|"
    "centimeter centimeters centimetre centimetres cm cms|foot feet ft|inch inches|yard yards yd yds|mile miles|"
    "kilogram kilograms kg kgs|gram grams|milligram milligrams|pound pounds lb lbs|ounce ounces oz|ton tons|"
    "tonne tonnes|liter liters litre litres|milliliter milliliters|gallon gallons gal|quart quarts|pint pints|cup cups|"
    "second seconds sec secs|minute minutes min mins|hour hours hr hrs|day days|week weeks|month months|year years yr|"
    "degree degrees deg|radian radians rad|celsius|fahrenheit|kelvin|watt watts|joule joules|newton newtons|"
    "volt volts|ohm ohms|hertz|mph|kmh kph|acre acres|hectare hectares|unit units|dollar dollars usd|"
    "cent cents|euro euros eur|penny pennies pence|quarter quarters|dime dimes|nickel nickels|point points|time times"
)
_COUNTED = (
    "animal apple bag ball balloon banana bead bean bicycle bike bird block board boat book bottle box bowl boy bread "
    "brick brother bus cake candle candy car card carrot cat chair chicken child choice chocolate cigarette circle "
    "class coin color combination cookie cow crayon customer diamond digit dog doll dot dress duck edge egg element "
    "employee eraser face factor fish floor flower friend fruit game gift girl glass goal goat guest hat horse house "
    "integer item jar kid lap lemon letter line man marble match member muffin nail number onion orange outcome page "
    "painting paper part peach pear pen pencil people person photo picture piece pizza plant player potato prize "
    "problem puppy question rabbit room root row school seat shell shirt shoe side solution sheep song spoon square "
    "stamp star step stick sticker stone student subset sweet table tank team teacher ticket tile toy tree triangle "
    "trip truck value vertex visitor wheel window woman word worker"
)
_IRREGULAR = {"children": "child", "men": "man", "women": "woman", "vertices": "vertex", "people": "person"}
_ONLY_AS_TEXT = {"m": "meter", "s": "second", "h": "hour", "g": "gram", "l": "liter", "in": "inch", "mi": "mile"} | {
    name: name for name in ("mg", "ml", "ms", "n", "w", "j", "v", "k", "c", "f", "hz", "kw", "kwh", "pa", "°")
}
"""What may be variables in bare text: `2mg` is a weight."""


def _names() -> dict[str, str]:
    names = {name: group.split()[0] for group in _MEASURES.split("|") for name in group.split()}
    for word in _COUNTED.split():
        plural = word[:-1] + "ies" if word[-1] == "y" and word[-2] not in "aeo" else word + "s"
        plural = word + "es" if word.endswith(("s", "x", "ch", "sh", "to")) else plural
        names |= {word: word, plural: word}
    return names | _IRREGULAR


UNITS = _names()
"""Word -> its unit, one name for singular, plural and abbreviations."""

_SIZES = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_CURRENCIES = {"\u20ac": "euro", "\u00a3": "sterling", "\u00a4": "dollar"}
_BEGINS = re.compile(r"\\text\{|(?<=[0-9)}% ])(?<![A-Za-z] )[A-Za-z]+")
_TOKEN = re.compile(r"([a-z]+)\.?\s*(?:\^\s*(?:([23])|\{\s*([23])\s*\}))?\s*|(/)\s*")


def split_unit(text: str) -> tuple[str, str] | None:
    r"""Returns (value, unit) of a value with words that only name its unit or multiply it, else None.

    >>> split_unit("3 hours"), split_unit(r"2.5\text{ cm}^2"), split_unit("5 million dollars")
    (('3', 'hour'), ('2.5', 'centimeter^2'), ('(5) \\cdot 10^{6}', 'dollar'))
    >>> split_unit("5 or more") is None, split_unit("25 percent")
    (True, ('25%', ''))
    """
    signed = re.fullmatch(r"([-+]?)\s*([\u20ac\u00a3\u00a4])(.*)|(.*)([\u20ac\u00a3\u00a4])", text)
    if signed:
        value = (signed[1] + signed[3] if signed[2] else signed[4]).strip()
        unit = _CURRENCIES[signed[2] or signed[5]]
        value, named = split_unit(value) or (value, unit)
        return (value, unit) if named in ("", unit) else None
    for begin in _BEGINS.finditer(text):
        value, words = text[: begin.start()].strip(), text[begin.start() :]
        read = _read_words(words) if value else None
        if read and all(value.count(opening) == value.count(closing) for opening, closing in ("{}", "()", "[]")):
            factor, unit = read
            return (f"{value}%" if factor == "%" else f"({value}){factor}" if factor else value), unit
    return None


def _read_words(words: str) -> tuple[str, str] | None:
    """Returns (what to write behind the value, unit) that words after it say, or None if they say anything else."""
    as_text = "\\text" in words or re.match(r"(?:k?m|mi) ?/ ?[hs]\b", words)
    units = UNITS | _ONLY_AS_TEXT if as_text else UNITS
    plain = re.sub(r"\bper\b", "/", re.sub(r"\\text\{([^{}]*)\}", r" \1 ", words).lower()).strip()
    power, factor, unit, size, place = 0, "", "", "", 0
    while place < len(plain):
        found = _TOKEN.match(plain, place)
        if not found:
            return None
        place = found.end()
        word, exponent = found[1], found[2] or found[3]
        starts = not unit or unit.endswith("/")
        if found[4] and not starts and "/" not in unit:
            unit += "/"
        elif word in units and starts and not (size and exponent):
            unit += units[word] + (f"^{exponent}" if exponent else size)
            size = ""
        elif exponent or unit or size or factor == "%":
            return None
        elif word in SCALES:
            power += SCALES[word]
            factor = f" \\cdot 10^{{{power}}}"
        elif word in ("percent", "pct") and not factor:
            factor = "%"
        elif word in _SIZES:
            size = _SIZES[word]
        else:
            return None
    return None if size or unit.endswith("/") else (factor, unit)
