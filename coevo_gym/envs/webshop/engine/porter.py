"""Lucene's variant of the Porter stemmer.

Porter's algorithm (1980) with its author's two later rules: ``bli`` becomes ``ble``, and ``logi``
becomes ``log``. Every step works on ASCII letters; other characters count as consonants.
"""

from __future__ import annotations


def _parse_rules(table: str) -> tuple[tuple[str, str], ...]:
    """Parse a table of word endings and their (possibly empty) replacements."""
    return tuple((old, new) for old, _, new in (pair.partition(" ") for pair in table.split(", ")))


_STEP_2 = _parse_rules(
    "ational ate, tional tion, enci ence, anci ance, izer ize, bli ble, alli al, entli ent, eli "
    "e, ousli ous, ization ize, ation ate, ator ate, alism al, iveness ive, fulness ful, ousness "
    "ous, aliti al, iviti ive, biliti ble, logi log"
)
_STEP_3 = _parse_rules("icate ic, ative, alize al, iciti ic, ical ic, ful, ness")
# "ement" comes before "ment" and "ent": the first matching suffix is used.
_STEP_4 = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent"),
    *("ion", "ou", "ism", "ate", "iti", "ous", "ive", "ize"),
)


def stem(word: str) -> str:
    """Reduce a lower-case word to its Porter stem. Words of up to two letters stay unchanged.

    Example:
        >>> stem("technologies"), stem("running"), stem("tv")
        ('technolog', 'run', 'tv')
    """
    if len(word) <= 2:
        return word
    word = _replace_final_y(_drop_past_and_gerund(_drop_plural(word)))
    word = _replace_suffix(word, _STEP_2)
    word = _replace_suffix(word, _STEP_3)
    return _drop_final_e_and_l(_drop_suffix(word))


def _shape(word: str) -> str:
    """Replace a word's vowels (including y after a consonant) with v, and its consonants with c."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Count the vowel-to-consonant transitions in a word (Porter's m)."""
    return _shape(word).count("vc")


def _ends_in_double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _ends_in_cvc(word: str) -> bool:
    """Return True if a word ends in consonant-vowel-consonant, but not in the letter w, x or y."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _drop_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _drop_past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    suffix = "ed" if word.endswith("ed") else "ing" if word.endswith("ing") else ""
    base = word[: len(word) - len(suffix)]
    if not suffix or "v" not in _shape(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _ends_in_double_consonant(base):
        return base if base[-1] in "lsz" else base[:-1]
    if _measure(base) == 1 and _ends_in_cvc(base):
        return base + "e"
    return base


def _replace_final_y(word: str) -> str:
    if word.endswith("y") and "v" in _shape(word[:-1]):
        return word[:-1] + "i"
    return word


def _replace_suffix(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for suffix, new in rules:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + new if _measure(base) > 0 else word
    return word


def _drop_suffix(word: str) -> str:
    for suffix in _STEP_4:
        if not word.endswith(suffix):
            continue
        base = word[: -len(suffix)]
        if suffix == "ion" and not base.endswith(("s", "t")):
            continue
        return base if _measure(base) > 1 else word
    return word


def _drop_final_e_and_l(word: str) -> str:
    if word.endswith("e"):
        base = word[:-1]
        measure = _measure(base)
        if measure > 1 or (measure == 1 and not _ends_in_cvc(base)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word
