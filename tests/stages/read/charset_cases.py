"""Pages in many encodings, declared in four ways: the cases of test_charset.py and of benchmarks/text/charsets.py."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

# Written for this test, so that it runs where no data is: two sentences about a mill for each language.
TEXTS = {
    "cs": "Starý mlýn u řeky mele pomalu, ale jistě; mlynář každé ráno otevře stavidlo a čeká, až se kolo rozběhne. "
    "Děti z vesnice se chodí dívat, jak se zrní mění v mouku, a ptají se, proč je všechno tak zaprášené.",
    "pl": "Stary młyn nad rzeką miele powoli, ale dokładnie; młynarz co rano otwiera śluzę i czeka, aż koło się rozkręci. "
    "Dzieci ze wsi przychodzą patrzeć, jak ziarno staje się mąką, i pytają, dlaczego wszędzie leży biały pył.",
    "ru": "Старая мельница у реки мелет медленно, но верно; каждое утро мельник открывает заслонку и ждёт, пока завертится колесо. "
    "Дети из деревни приходят посмотреть, как зерно становится мукой, и спрашивают, почему всё вокруг белое.",
    "uk": "Старий млин біля річки меле повільно, але певно; щоранку мірошник відчиняє заслінку й чекає, поки закрутиться колесо. "
    "Діти з села приходять подивитися, як зерно стає борошном, і питають, чому все довкола біле, наче їхній сніг.",
    "de": "Die alte Mühle am Fluss mahlt langsam, aber gründlich; jeden Morgen öffnet der Müller das Wehr und wartet, bis sich das Rad dreht. "
    "Die Kinder aus dem Dorf schauen zu, wie aus Körnern Mehl wird, und fragen, warum alles so weiß und müde aussieht.",
    "fr": "Le vieux moulin près de la rivière moud lentement, mais sûrement ; chaque matin, le meunier lève la vanne et attend que la roue s'élance. "
    "Les élèves du village viennent voir où le blé devient farine, et demandent à quoi sert tant de poussière, le cœur léger, pour 5 €.",
    "el": "Ο παλιός μύλος δίπλα στο ποτάμι αλέθει αργά αλλά σίγουρα· κάθε πρωί ο μυλωνάς ανοίγει το φράγμα και περιμένει να γυρίσει η ρόδα. "
    "Άλλα παιδιά από το χωριό έρχονται να δουν πώς το σιτάρι γίνεται αλεύρι και ρωτούν γιατί όλα είναι άσπρα.",
    "tr": "Nehrin kıyısındaki eski değirmen yavaş ama iyi öğütür; değirmenci her sabah savağı açar ve çarkın dönmesini bekler. "
    "Köyün çocukları tahılın nasıl una dönüştüğünü görmeye gelir ve her şeyin neden bembeyaz olduğunu sorarlar.",
    "he": "הטחנה הישנה ליד הנהר טוחנת לאט אבל היטב; בכל בוקר הטוחן פותח את הסכר ומחכה שהגלגל יסתובב. "
    "הילדים מן הכפר באים לראות איך הגרעינים הופכים לקמח ושואלים למה הכול לבן כל כך.",
    "ar": "الطاحونة القديمة عند النهر تطحن ببطء ولكن بإتقان؛ كل صباح يفتح الطحان السد وينتظر حتى تدور العجلة. "
    "يأتي أطفال القرية ليروا كيف يصبح القمح دقيقا ويسألون لماذا كل شيء أبيض إلى هذا الحد.",
    "lt": "Senas malūnas prie upės mala lėtai, bet gerai; kiekvieną rytą malūnininkas atidaro užtvanką ir laukia, kol ratas ims suktis. "
    "Kaimo vaikai ateina pažiūrėti, kaip grūdai virsta miltais, ir klausia, kodėl čia viskas taip balta ir šviesu.",
    "vi": "Cối xay cũ bên sông xay chậm nhưng kỹ; mỗi sáng người thợ mở cửa nước và đợi bánh xe quay. "
    "Trẻ em trong làng đến xem hạt lúa trở thành bột và hỏi vì sao mọi thứ đều trắng như vậy.",
    "th": "โรงสีเก่าริมแม่น้ำโม่แป้งอย่างช้า ๆ แต่ละเอียด ทุกเช้าคนโม่จะเปิดประตูน้ำแล้วรอให้กังหันหมุน "
    "เด็ก ๆ ในหมู่บ้านมาดูว่าเมล็ดข้าวกลายเป็นแป้งได้อย่างไร และถามว่าทำไมทุกอย่างจึงขาวไปหมด",
    "ja": "川のそばの古い水車小屋はゆっくりと、しかし確実に粉をひきます。毎朝、粉屋は水門を開けて車輪が回り出すのを待ちます。"
    "村の子どもたちは穀物が粉になるところを見に来て、どうしてすべてが白いのかとたずねます。",
    "zh": "河边的老磨坊磨得很慢，但是磨得很细。每天早上磨坊主打开水闸，等着轮子转起来。村里的孩子们来看谷子怎么变成面粉，还问为什么这里的一切都是白的。",
    "zh-tw": "河邊的老磨坊磨得很慢，但是磨得很細。每天早上磨坊主人打開水閘，等著輪子轉起來。村裡的孩子們來看穀子怎麼變成麵粉，還問為什麼這裡的一切都是白的。",
    "ko": "강가의 오래된 물레방아는 천천히 그러나 곱게 가루를 빻는다. 매일 아침 방앗간 주인은 수문을 열고 바퀴가 돌기를 기다린다. "
    "마을 아이들은 곡식이 어떻게 가루가 되는지 보러 와서 왜 모든 것이 하얀지 묻는다.",
}  # fmt: skip
# Python's codec, the label that pages give it, and the languages of the pages that are in it.
CODECS = {
    "cp1250": ("windows-1250", "cs pl"), "iso8859-2": ("iso-8859-2", "cs pl"), "cp1251": ("windows-1251", "ru uk"), "koi8-r": ("koi8-r", "ru"),
    "koi8-u": ("koi8-u", "uk"), "iso8859-5": ("iso-8859-5", "ru"), "cp866": ("ibm866", "ru"), "cp1252": ("windows-1252", "de fr"),
    "latin-1": ("iso-8859-1", "de"), "iso8859-15": ("iso-8859-15", "fr"), "cp1253": ("windows-1253", "el"), "iso8859-7": ("iso-8859-7", "el"),
    "cp1254": ("windows-1254", "tr"), "iso8859-9": ("iso-8859-9", "tr"), "cp1255": ("windows-1255", "he"), "iso8859-8": ("iso-8859-8", "he"),
    "cp1256": ("windows-1256", "ar"), "cp1257": ("windows-1257", "lt"), "cp1258": ("windows-1258", "vi"), "cp874": ("windows-874", "th"),
    "tis-620": ("tis-620", "th"), "cp932": ("shift_jis", "ja"), "euc_jp": ("euc-jp", "ja"), "iso2022_jp": ("iso-2022-jp", "ja"),
    "gb18030": ("gb18030", "zh"), "gbk": ("gb2312", "zh"), "big5": ("big5", "zh-tw"), "euc_kr": ("euc-kr", "ko"), "utf-8": ("utf-8", "ru zh"),
    "utf-16": ("utf-16", "ru ja"), "utf-16-le": ("utf-16le", "de ja"), "utf-16-be": ("utf-16be", "ru zh"),
}  # fmt: skip
WAYS = ("undeclared", "meta", "HTTP", "HTTP says utf-8")
# What encodings of before Unicode have no place for, as authors wrote it then.
OLD_SPELLING = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "–": "-", "—": "-", "…": "..."})
TONES = "\u0300\u0301\u0303\u0309\u0323"


DAMAGED = re.compile("[\x80-\x9f\ufffd¤]|ďż")  # in sentences that were misread before they came into the data


class Case(NamedTuple):
    codec: str
    way: str
    text: str
    page: bytes
    http: str | None


def cases(texts: dict[str, list[str]]) -> Iterator[Case]:
    """Each text in each encoding of its language, declared in each way."""
    for codec, (label, languages) in CODECS.items():
        for language in languages.split():
            for given in texts.get(language, []):
                text = encodable(given, codec)
                for way in WAYS if text else ():
                    meta = f"<meta charset={label}>" if way == "meta" else ""
                    http = {"HTTP": label, "HTTP says utf-8": "utf-8"}.get(way)
                    page = f"<html><head>{meta}<title>-</title></head><body><p>{text}</p></body></html>"
                    yield Case(codec, way, str(text), page.encode(codec), http)


def encodable(text: str, codec: str) -> str | None:
    """The text as an author would have written it in an encoding; None where it has no way."""
    for written in (text, text.translate(OLD_SPELLING), with_tones_apart(text), re.sub(" €|œ", "", text)):
        try:
            return written if written.encode(codec).decode(codec) == written else None
        except UnicodeEncodeError:
            continue
    return None


def with_tones_apart(text: str) -> str:
    """Vietnamese as windows-1258 has it: letters whole, tones after them."""

    def apart(character: str) -> str:
        parts = unicodedata.normalize("NFD", character)
        return unicodedata.normalize("NFC", "".join(p for p in parts if p not in TONES)) + "".join(
            p for p in parts if p in TONES
        )

    return "".join(map(apart, text))


def texts_of(path: Path, count: int, characters: int) -> dict[str, list[str]]:
    """Texts by language, made of sentences drawn with a fixed seed."""
    table = pq.read_table(path)
    sentences: dict[str, list[str]] = {}
    for language, sentence in zip(table["language"].to_pylist(), table["text"].to_pylist(), strict=True):
        if not DAMAGED.search(sentence):
            sentences.setdefault(language, []).append(" ".join(sentence.split()))
    random_of = random.Random(20)
    return {
        language: [text(known, characters, random_of) for _ in range(count)]
        for language, known in sorted(sentences.items())
    }


def text(sentences: list[str], characters: int, random_of: random.Random) -> str:
    chosen: list[str] = []
    while sum(map(len, chosen)) < characters:
        chosen.append(random_of.choice(sentences))
    return " ".join(chosen)
