"""Stop words by language: the most frequent words, of which running text has some and lists, tables and code have none.

English is Gopher's list (Rae et al. 2021, appendix A). The others are written here after the same idea: eight to twelve
of the commonest function words, lower case. Chinese, Japanese and Thai are single characters and pieces, as `units:
uax29` cuts those scripts.
"""

from __future__ import annotations

import re

STOP_WORDS: dict[str, tuple[str, ...]] = {
    language: tuple(words.split())
    for language, words in {
        "en": "the be to of and that have with",
        "ar": "في من على إلى أن عن التي الذي هذا هذه ما لا",
        "bg": "на и в за да се от е не с",
        "bn": "এবং ও এই করে না থেকে জন্য হয় যে তার",
        "ca": "de la i el que en els a per les",
        "cs": "a v se na je že o s z do i",
        "da": "og i at er det en til på som af",
        "de": "der die und in den von zu das mit nicht ist",
        "el": "και το να του η της με που την από",
        "es": "de la que el en y a los se del",
        "et": "ja on ei et oli kui see ka ning mis",
        "eu": "eta da ez du bat dira ere izan",
        "fa": "و در به از که این را با است برای",
        "fi": "ja on ei että oli se hän mutta joka kun",
        "fr": "de la le et les des en un une que",
        "he": "של את על לא זה עם הוא כל היא אני",
        "hi": "के का में की है से और को पर ने",
        "hr": "i u je se na da za su od ne",
        "hu": "a az és hogy nem is egy de volt meg",
        "hy": "և է որ են մեջ համար իր այս",
        "id": "yang dan di untuk dengan dari ini pada tidak itu",
        "it": "di e che la il in un per è non",
        "ja": "の に は を た が で て と し",
        "ka": "და არ რომ ეს იყო მისი თუ რა",
        "ko": "이 그 수 있는 등 및 것 있다 그리고 하는",
        "lt": "ir į kad su yra tai buvo iš kaip ne",
        "lv": "un ir ka no ar par uz bija kas arī",
        "mr": "आहे आणि या च्या तर हे ते असे नाही मध्ये",
        "ms": "yang dan di untuk dengan dari ini pada tidak itu",
        "nl": "de van en het een in is dat op te",
        "no": "og i er det på som en til av for",
        "pl": "w i na z do się nie to że jest",
        "pt": "de a o que e do da em um para",
        "ro": "de și în a la cu pe din că nu",
        "ru": "и в не на что с по как это он",
        "sk": "a v sa na je že s o z do",
        "sl": "in je v na se da za so ki z",
        "sr": "и у је се на да за су од не i u je se na da za su od ne",
        "sv": "och i att det som en på är av för",
        "sw": "ya na wa kwa ni katika za la kuwa hii",
        "ta": "மற்றும் ஒரு என்று இந்த அவர் இது என்ற அந்த",
        "te": "మరియు ఈ ఒక ఆ అని నుండి కూడా తన",
        "th": "ที่ การ เป็น และ ของ ใน มี ได้ ให้ ไม่ ว่า",
        "tl": "ng sa ang na mga at ay ni si para",
        "tr": "ve bir bu da de için ile olarak olan çok",
        "uk": "і в на що не з у та до як",
        "ur": "کے میں کی ہے اور سے کا کو کہ پر",
        "vi": "và của là có các được cho trong không với",
        "zh": "的 是 在 了 不 和 有 我 这 人",
    }.items()
}

# ISO 639-3 (as GlotLID and FineWeb2 name languages, before the script) to the names above.
_LETTERS = (
    "eng:en ara:ar arb:ar bul:bg ben:bn cat:ca ces:cs dan:da deu:de ell:el spa:es est:et ekk:et eus:eu "
    "fas:fa pes:fa fin:fi fra:fr heb:he hin:hi hrv:hr hun:hu hye:hy "
    "ind:id ita:it jpn:ja kat:ka kor:ko lit:lt lav:lv lvs:lv mar:mr msa:ms zsm:ms nld:nl nob:no nor:no "
    "nno:no pol:pl por:pt ron:ro rus:ru slk:sk slv:sl srp:sr swe:sv "
    "swa:sw swh:sw tam:ta tel:te tha:th tgl:tl fil:tl tur:tr ukr:uk urd:ur vie:vi zho:zh cmn:zh"
)
THREE_LETTERS: dict[str, str] = dict(pair.split(":") for pair in _LETTERS.split())


def plain_name(language: str) -> str:
    """`en` of en, EN, en-US, eng and eng_Latn."""
    first = re.split("[-_]", language.lower())[0]
    return THREE_LETTERS.get(first, first)
