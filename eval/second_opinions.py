"""Compare the word forms used by balanced prompts with those of other libraries.

    pip install pymorphy3 inflect simplemma
    python -m eval.second_opinions --json eval/results/languages/second_opinions.json

The reference for Russian is pymorphy3 (OpenCorpora), for every noun for a person in six cases and
two numbers and a sample of adjectives. For articles and plurals of English nouns for people, it is
inflect. For German, French, Spanish, Italian and Portuguese plurals, it is simplemma. The libraries
are not installed with the package. Forms that are unknown to a library are not compared, and
neither are English nouns ending in -man, -woman or -person, which the package recognises by their
endings.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vldebias.prompts.english.words import _words, singular
from vldebias.prompts.prompt_set import append_word
from vldebias.wording.languages import load_language
from vldebias.wording.languages.base import Noun
from vldebias.wording.languages.de.grammar import German
from vldebias.wording.languages.romance import RomanceLanguage
from vldebias.wording.languages.ru import grammar as russian

_CASES = ("nomn", "gent", "datv", "accs", "ablt", "loct")
_ADJECTIVES = 3000
_ROMANCE = ("fr", "es", "it", "pt")


class Comparison(NamedTuple):
    """A word form with its analyses by the package and by the library."""

    form: str
    package: str
    library: str

    @property
    def agrees(self) -> bool:
        return self.package == self.library


def _plain(word: str) -> str:
    return word.replace("\u0451", "\u0435")


def _is_reading(noun: Noun | None, word: str, case: int, number: str) -> bool:
    """Return whether the package analyses a form as the given case and number of a noun."""
    if noun is None or _plain(noun.masculine) != _plain(word):
        return False
    if number == "plur":
        return noun.number != "one" or case in noun.cases
    return noun.number != "many" and (not noun.cases or case in noun.cases)


def russian_nouns() -> Iterator[Comparison]:
    """Yield the forms of all nouns for people, and whether the package knows them."""
    import pymorphy3

    analyzer = pymorphy3.MorphAnalyzer()
    language = russian.LANGUAGE
    nouns = language._nouns
    for name in ("person", "person-a", "person-adjectival"):
        for word in language.entries(name):
            for parse in analyzer.parse(word):
                is_person = {"NOUN", "anim"} <= parse.tag.grammemes or name == "person-adjectival"
                is_lemma = parse.is_known and _plain(parse.normal_form) == _plain(word)
                if not is_person or not is_lemma or parse.tag.grammemes & {"Surn", "Fixd", "femn"}:
                    continue
                for case, case_name in enumerate(_CASES):
                    for number in ("sing", "plur"):
                        form = _inflected(parse, case_name, number)
                        noun = nouns.get(form) or nouns.get(_plain(form))
                        label = f"{word}, {case_name} {number}"
                        if form:
                            is_read = _is_reading(noun, word, case, number)
                            yield Comparison(label, form if is_read else "", form)


def _inflected(parse: Any, case: str, number: str) -> str:
    """Return an inflected form of a word from pymorphy3, or "" if there is none."""
    grammemes = {case, number}
    if "ADJF" in parse.tag:
        grammemes |= {"masc"} if number == "sing" else set()
        grammemes |= {"anim"} if case == "accs" else set()
    inflected = parse.inflect(grammemes)
    return str(inflected.word) if inflected else ""


def russian_adjectives() -> Iterator[Comparison]:
    """Yield the feminine forms of a sample of adjectives in six cases."""
    import pymorphy3

    analyzer = pymorphy3.MorphAnalyzer()
    words = {
        word
        for word, tag, lemma, *_ in analyzer.dictionary.iter_known_words()
        if word == lemma and {"ADJF", "Qual", "masc", "nomn"} <= tag.grammemes
    }
    for word in random.Random(0).sample(sorted(words), _ADJECTIVES):
        for parse in analyzer.parse(word):
            if "ADJF" not in parse.tag or parse.normal_form != word:
                continue
            for case, case_name in enumerate(_CASES):
                masculine = _inflected(parse, case_name, "sing")
                feminine = parse.inflect({"femn", "sing", case_name})
                if masculine and feminine:
                    package = _plain(russian.feminine_adjective(masculine, case))
                    # "новою" is an older form of "новой".
                    library = _plain(feminine.word)
                    if library.endswith(("ою", "ею")):
                        library = library[:-1] + "й"
                    yield Comparison(f"{masculine}, {case_name}", package, library)
            break


def _english_nouns() -> list[str]:
    """Return the single-word nouns for people that the package knows."""
    nouns = [word for word, kinds in _words().items() if "p" in kinds and word.isalpha()]
    return sorted(noun for noun in nouns if not noun.endswith(("man", "person")))


def english_articles() -> Iterator[Comparison]:
    """Yield each noun with its article."""
    import inflect

    engine = inflect.engine()
    for noun in _english_nouns():
        yield Comparison(noun, append_word("a ", noun), str(engine.a(noun)))


def english_plurals() -> Iterator[Comparison]:
    """Yield the singular that the package finds for each plural from inflect."""
    import inflect

    engine = inflect.engine()
    for noun in _english_nouns():
        if not engine.singular_noun(noun):
            plural = str(engine.plural_noun(noun))
            yield Comparison(plural, singular(plural), noun)


def romance_plurals(code: str) -> Iterator[Comparison]:
    """Yield the noun that the package finds for each plural that simplemma knows."""
    import simplemma

    language = load_language(code)
    assert isinstance(language, RomanceLanguage)
    for form, noun in language.nouns.items():
        if noun.number == "many" and " " not in form and simplemma.is_known(form, lang=code):
            yield _lemma(form, noun, code)


def german_forms() -> Iterator[Comparison]:
    """Yield the noun that the package finds for each form that simplemma knows."""
    import simplemma

    language = load_language("de")
    assert isinstance(language, German)
    for masculine, feminine, genitive, plural in language._pairs:
        for form in (genitive, plural):
            if form != masculine and simplemma.is_known(form, lang="de"):
                yield _lemma(form, Noun(masculine, feminine), "de")


def _lemma(form: str, noun: Noun, code: str) -> Comparison:
    import simplemma

    lemma = simplemma.lemmatize(form, lang=code)
    package = noun.feminine if lemma.lower() == noun.feminine.lower() else noun.masculine
    return Comparison(form, package.lower(), lemma.lower())


def measure() -> dict[str, Any]:
    """Return the number of compared forms and the forms that differ for each check."""
    checks = {
        "Russian nouns (pymorphy3)": russian_nouns(),
        "Russian adjectives (pymorphy3)": russian_adjectives(),
        "English articles (inflect)": english_articles(),
        "English plurals (inflect)": english_plurals(),
        "German nouns (simplemma)": german_forms(),
    }
    for code in _ROMANCE:
        checks[f"{load_language(code).name} plurals (simplemma)"] = romance_plurals(code)
    results: dict[str, Any] = {}
    for name, comparisons in checks.items():
        rows = list(comparisons)
        others = [row for row in rows if not row.agrees]
        results[name] = {
            "n": len(rows),
            "others": {row.form: [row.package, row.library] for row in others},
        }
    return results


def main() -> None:
    """Print the number of forms that differ, and write all of them to a JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the forms that differ here")
    arguments = parser.parse_args()
    results = measure()
    for name, result in results.items():
        print(f"{name:34} {len(result['others']):4} of {result['n']:6} forms differ")
    if arguments.json:
        text = json.dumps(results, indent=1, ensure_ascii=False, sort_keys=True)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
