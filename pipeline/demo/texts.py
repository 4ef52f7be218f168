"""What the pages of the demo crawl say: the standard library's own docstrings, short texts in other languages, and
spam.

The library's sources are parsed, never imported: importing some of its modules opens windows or prints poems.
"""

from __future__ import annotations

import ast
import inspect
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARY = """
argparse ast base64 bdb bisect calendar cmd code codecs collections configparser contextlib csv dataclasses difflib doctest
enum filecmp fileinput fnmatch fractions ftplib functools getopt glob gzip heapq imaplib inspect ipaddress locale logging mailbox mimetypes
optparse os pdb pickle pickletools platform poplib pprint queue random sched selectors shelve shutil smtplib socket socketserver statistics
string subprocess tarfile tempfile textwrap threading timeit tokenize trace traceback typing uuid warnings wave weakref webbrowser zipfile
email/message html/parser http/client http/cookiejar json/decoder unittest/case unittest/mock urllib/parse urllib/request
"""

LEAST_WORDS, MOST_WORDS = 60, 900
ALIKE = 0.7  # of the runs of five words of two articles: what the demo's recipe calls a near duplicate


@dataclass(frozen=True)
class Article:
    """A title and its blocks, each a tag (`p`, `h2`, `pre`) and a text. The first block is a paragraph."""

    title: str
    blocks: tuple[tuple[str, str], ...]
    language: str = "en"

    @property
    def words(self) -> int:
        return sum(len(text.split()) for _, text in self.blocks)

    @property
    def first_sentence(self) -> str:
        return re.split(r"(?<=[.!?])\s|(?<=[。！？])", self.blocks[0][1], maxsplit=1)[0]


def library_articles(count: int) -> list[Article]:
    """Articles from the docstrings of the standard library, no two with nearly the same text (`glob` and `iglob` in
    Python 3.14)."""
    found: dict[tuple[tuple[str, str], ...], Article] = {}
    openings: set[str] = set()
    runs: list[set[tuple[str, ...]]] = []
    for article in _library():
        opening = article.first_sentence
        if article.blocks in found or opening in openings or len(opening) < 20:
            continue
        words = " ".join(text for _, text in article.blocks).lower().split()
        own = set(zip(*(words[at:] for at in range(5)), strict=False))
        if any(len(own & other) >= ALIKE * len(own | other) for other in runs):
            continue
        runs.append(own)
        openings.add(opening)
        found[article.blocks] = article
        if len(found) == count:
            return list(found.values())
    raise RuntimeError(
        f"the demo makes its pages from the sources of Python's library, and found {len(found)} texts of {count} "
        f"under {sysconfig.get_path('stdlib')}; this Python seems to be installed without them"
    )


def _library() -> Iterator[Article]:
    root = Path(sysconfig.get_path("stdlib"))
    for name in LIBRARY.split():
        path = next((p for p in (root / f"{name}.py", root / name / "__init__.py") if p.is_file()), None)
        if path is None:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = name.replace("/", ".")
        yield from _article(f"The {module} module", [("", ast.get_docstring(tree))])
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                methods = [
                    (m.name, ast.get_docstring(m))
                    for m in node.body
                    if isinstance(m, ast.FunctionDef) and m.name[0] != "_"
                ]
                yield from _article(f"{module}.{node.name}", [("", ast.get_docstring(node)), *methods])
            elif isinstance(node, ast.FunctionDef):
                yield from _article(f"{module}.{node.name}()", [("", ast.get_docstring(node))])


def _article(title: str, sections: list[tuple[str, str | None]]) -> Iterator[Article]:
    blocks: list[tuple[str, str]] = []
    words = 0
    for heading, docstring in sections:
        if not docstring:
            if not heading:
                return  # nothing to open the page with
            continue
        added = list(_blocks(docstring))
        words += sum(len(text.split()) for _, text in added)
        if words > MOST_WORDS:
            break
        blocks += [("h2", f"{heading}()"), *added] if heading else added
    if words >= LEAST_WORDS and blocks and blocks[0][0] == "p":
        yield Article(title, tuple(blocks))


def _blocks(docstring: str) -> Iterator[tuple[str, str]]:
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        if re.search(r"^(\s{2,}|>>>)", paragraph, re.MULTILINE):
            yield "pre", paragraph.rstrip()
        elif paragraph.strip():
            yield "p", " ".join(paragraph.split())


def edited(article: Article, rng: random.Random) -> Article:
    """The same article with a few words changed, some of them for certain; its first sentence stays."""
    long = [at for at, (tag, text) in enumerate(article.blocks) if tag == "p" and at > 0 and len(text.split()) >= 5]
    blocks = list(article.blocks)
    if not long:
        blocks.append(("p", "Reviewed by the editors."))
    for at in long[:1]:
        words = blocks[at][1].split()
        words[rng.randrange(len(words))] = rng.choice(["commonly", "roughly", "elsewhere", "therefore", "afterwards"])
        blocks[at] = ("p", " ".join([*words, "Reviewed."] if at == long[0] else words))
    return Article(article.title, tuple(blocks), article.language)


# Sentences of our own; {n} is a number, {town} and {name} are names. A page takes some of them in an order of its own.
SENTENCES: dict[str, tuple[str, ...]] = {
    "de": (
        "Der Wochenmarkt in {town} öffnet seit {n} Jahren jeden Samstag um sieben Uhr.",
        "{name} verkauft dort Äpfel, Kräuter und Honig aus dem eigenen Garten.",
        "Wer früh kommt, findet noch frisches Brot und einen Platz in der Sonne.",
        "Im Winter wird der Markt kleiner, doch etwa {n} Händler bleiben das ganze Jahr.",
        "Die alte Mühle am Fluss mahlt das Getreide wie früher zwischen zwei Steinen.",
        "Über die Brücke von {town} fährt seit dem Umbau keine Straßenbahn mehr.",
        "Für Kinder gibt es eine Führung, die ungefähr {n} Minuten dauert.",
        "Am Abend räumen alle gemeinsam auf, und {name} spielt dazu Akkordeon.",
    ),
    "fr": (
        "Le moulin de {town} a été restauré par une équipe de {n} bénévoles.",
        "{name} raconte volontiers comment la rivière a changé depuis son enfance.",
        "Chaque été, les élèves viennent apprendre à faire du pain à l'ancienne.",
        "La farine est vendue à l'entrée, dans des sacs de {n} kilos.",
        "On y arrive à pied par un sentier bordé de châtaigniers et de vieux murs.",
        "La bibliothèque du village prête aussi des outils et des graines.",
        "Le dimanche, un petit train relie {town} à la côte en {n} minutes.",
        "À la fin de la visite, {name} offre un café et des gâteaux aux noix.",
    ),
    "es": (
        "La estación de {town} cumplió {n} años y sus vecinos quisieron celebrarlo.",
        "{name} preparó una exposición con fotografías, billetes y mapas antiguos.",
        "Los trenes ya no paran de noche, pero el reloj sigue funcionando.",
        "En la sala de espera caben unas {n} personas y un piano.",
        "Muchos viajeros recuerdan el olor del café y el ruido de las maletas.",
        "El jardín se riega con el agua de lluvia que recogen los tejados.",
        "Desde {town} se llega al puerto por un camino de {n} kilómetros.",
        "Al final, {name} leyó una carta que nadie había abierto hasta entonces.",
    ),
    "el": (
        "Το λιμάνι της πόλης {town} έχει {n} μικρές βάρκες και έναν παλιό φάρο.",
        "Ο ψαράς {name} ξεκινά κάθε πρωί πριν βγει ο ήλιος.",
        "Οι γείτονες συναντιούνται στην πλατεία και μιλούν για τον καιρό.",
        "Το σχολείο βρίσκεται {n} βήματα από τη θάλασσα.",
        "Το καλοκαίρι έρχονται πολλοί επισκέπτες, τον χειμώνα όμως επικρατεί ησυχία.",
        "Στο μικρό μουσείο φυλάσσονται χάρτες, δίχτυα και γράμματα ναυτικών.",
        "Το πλοίο για {town} φεύγει κάθε {n} ημέρες αν το επιτρέπει ο άνεμος.",
    ),
    "zh": (
        "{town}的图书馆今年迎来了第{n}位读者。",
        "{name}每天早上都会先打开窗户，再把报纸放到桌上。",
        "孩子们喜欢坐在靠近花园的位置，一边看书一边听雨。",
        "旧楼共有{n}个房间，其中最安静的是地图室。",
        "周末的时候，志愿者会在这里教大家修补破损的书页。",
        "从火车站走到{town}的中心大约需要{n}分钟。",
        "冬天的傍晚，街上的灯光映在河面上，显得格外温暖。",
        "最后，{name}把新收到的信件整理好，锁上了大门。",
    ),
    "ja": (
        "{town}の小さな植物園には{n}種類の花が咲いています。",
        "{name}さんは毎朝、温室の温度をノートに書いています。",
        "雨の日には、子どもたちが窓のそばで絵を描きます。",
        "駅から歩いて{n}分ほどで、静かな池が見えてきます。",
        "秋になると、落ち葉を集めて新しい土を作ります。",
        "古い案内板は、地元の大工が木で作ったものです。",
        "{town}の人々は、週末にここで野菜と種を交換します。",
        "閉園のあと、{name}さんはもう一度すべての鉢に水をやります。",
    ),
    "ar": (
        "يفتح المتحف في {town} أبوابه منذ {n} عاما أمام الزوار.",
        "يشرح {name} للأطفال كيف كانت السفن تعبر البحر في الماضي.",
        "في القاعة الكبيرة خريطة قديمة رسمت باليد على ورق سميك.",
        "يعمل هنا نحو {n} متطوعا في ترميم الكتب والرسائل.",
        "بعد الظهر يجلس الجيران في الحديقة ويشربون الشاي بالنعناع.",
        "الطريق من المحطة إلى {town} قصير وجميل في فصل الربيع.",
        "في المساء يغلق {name} النوافذ ويكتب ملاحظاته عن اليوم.",
    ),
    "ru": (
        "Обсерватория в городе {town} работает уже {n} лет.",
        "Каждый вечер {name} проверяет телескоп и записывает погоду.",
        "Зимой небо особенно чистое, и гости приходят в тёплых пальто.",
        "В библиотеке хранится {n} старых карт звёздного неба.",
        "Школьники учатся находить планеты и задают много вопросов.",
        "Дорога из центра занимает около {n} минут пешком через парк.",
        "Летом здесь проходят лекции под открытым небом.",
        "В конце ночи {name} заваривает чай и ждёт рассвета.",
    ),
}
NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "de": (("Lindau", "Rostock", "Görlitz", "Bamberg"), ("Frau Schäfer", "Herr Brandt", "Jürgen")),
    "fr": (("Auxerre", "Quimper", "Béziers", "Annecy"), ("Hélène", "Monsieur Garnier", "Inès")),
    "es": (("Teruel", "Cáceres", "Ronda", "Vigo"), ("Doña Pilar", "Íñigo", "Lucía")),
    "el": (("Ναύπλιο", "Χανιά", "Βόλος", "Καβάλα"), ("Νίκος", "Γιώργος", "Σπύρος")),
    "zh": (("苏州", "昆明", "青岛", "成都"), ("王老师", "李明", "陈阿姨")),
    "ja": (("金沢", "松江", "小樽", "高知"), ("田中", "山本", "佐藤")),
    "ar": (("طنجة", "الإسكندرية", "صور", "مسقط"), ("سالم", "الأستاذ كريم", "يوسف")),
    "ru": (("Тверь", "Псков", "Казань", "Томск"), ("Анна", "Сергей", "Ирина")),
}


def foreign_article(language: str, rng: random.Random) -> Article:
    """Six sentences of a language with names and numbers filled in, in two paragraphs under a title."""
    towns, names = NAMES[language]
    space = "" if language in ("zh", "ja") else " "
    chosen = [
        s.format(n=rng.randint(3, 980), town=rng.choice(towns), name=rng.choice(names))
        for s in rng.sample(SENTENCES[language], 6)
    ]
    blocks = (("p", space.join(chosen[:3])), ("p", space.join(chosen[3:])))
    return Article(f"{rng.choice(towns)} {rng.randint(100, 999)}", blocks, language)


def keyword_spam(rng: random.Random) -> Article:
    """A page that says the same few words again and again."""
    thing = rng.choice(["watches", "handbags", "sneakers", "mattress", "printer ink", "car insurance"])
    city = rng.choice(["Springfield", "Riverton", "Lakeside", "Fairview"])
    phrase = f"cheap {thing} {city}"
    opening = f"Buy {phrase} online today at code {rng.randint(1000, 9999)}."
    return Article(f"{phrase} best {phrase}", (("p", opening), *_repeat(phrase, rng)))


def _repeat(phrase: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    for _ in range(rng.randint(5, 9)):
        yield (
            "p",
            " ".join([phrase, rng.choice(["best price", "discount", "free delivery"])] * rng.randint(8, 14)) + ".",
        )


def link_farm(rng: random.Random) -> Article:
    """A page of little but links to pages of its own kind."""
    topics = ["casino", "loans", "pills", "horoscope", "ringtones", "coupons", "lottery", "diet"]
    opening = (
        f"Our directory number {rng.randint(1000, 9999)} lists the best partner sites that you can visit this week"
        " for free."
    )
    links = [f"best-{rng.choice(topics)}-{rng.choice(topics)}-{rng.randint(1, 9999)}" for _ in range(80)]
    return Article("Top partner sites directory", (("p", opening), *(("a", link) for link in links)))


def injection_article() -> Article:
    """A page whose title and text would run as script in any report that forgets to escape."""
    code = "<script>alert('title')</script>"
    attack = "<img src=x onerror=alert(1)> and </script><script>alert('text')</script>"
    first = f"This thread explains how a forum was attacked with {attack} in an ordinary message."
    rest = (
        "The moderators escaped every title, every text and every address before showing it, and the attack did"
        " nothing. " * 3
    )
    return Article(f"Escaping {code}", (("p", first), ("p", rest.strip()), ("pre", f'"><svg/onload=alert(2)> {code}')))
