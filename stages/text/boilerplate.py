"""Lines that belong to the site and not to the text: cookie and policy notices, "read more", share and like counters,
carts, sign-in.

The phrases are our own, for English and eleven other languages of the web; a recipe names its own instead or beside
them (`more_...`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.unicode import properties
from gristmill.kernels.lines.boilerplate import WHOLE, WITHIN, boilerplate_lines
from gristmill.kernels.lines.phrases import lower_case, phrase_as_line, phrase_within
from gristmill.stages.stage import Applied, Rewrite, Signals
from gristmill.stages.text.line_text import Phrases, rewritten, room_for, trie_of_pairs

LINES = (
    # English: further reading, sharing, counters, accounts, carts, moving about
    "read more", "continue reading", "show more", "show less", "view more", "load more", "see more", "see all",
    "view all", "learn more", "click here", "more info", "share", "share this", "share this post",
    "share this article", "share on facebook", "share on twitter", "share via email", "tweet", "tweet this", "pin it",
    "like", "like this", "follow us", "likes", "shares", "comments", "views", "followers", "retweets", "reposts",
    "upvotes", "downvotes", "downloads", "bookmarks", "reply", "leave a comment", "leave a reply", "post a comment",
    "items in cart", "item in cart", "add to cart", "view cart", "your cart is empty", "shopping cart", "checkout",
    "add to wishlist", "sign in", "sign up", "sign out", "log in", "login", "log out", "logout", "register",
    "create an account", "forgot password", "forgot your password", "my account", "remember me", "subscribe",
    "unsubscribe", "skip to content", "skip to main content", "back to top", "scroll to top", "toggle navigation",
    "previous", "next", "previous post", "next post", "home", "menu", "search", "print", "print this page",
    "email this", "advertisement", "privacy policy", "cookie policy", "terms of use", "terms of service",
    "terms and conditions", "all rights reserved", "accept cookies", "accept all", "accept all cookies",
    "cookie settings", "manage cookies",
    # German, French, Spanish, Portuguese, Italian, Dutch
    "weiterlesen", "mehr lesen", "mehr erfahren", "mehr anzeigen", "teilen", "anmelden", "registrieren",
    "in den warenkorb", "warenkorb", "nach oben", "datenschutz", "datenschutzerklärung", "impressum",
    "alle akzeptieren", "lire la suite", "en savoir plus", "voir plus", "partager", "se connecter", "connexion",
    "ajouter au panier", "s'inscrire", "politique de confidentialité", "mentions légales", "tout accepter", "leer más",
    "seguir leyendo", "ver más", "compartir", "iniciar sesión", "registrarse", "añadir al carrito",
    "política de privacidad", "aviso legal", "aceptar todo", "leia mais", "ler mais", "continue lendo", "ver mais",
    "compartilhar", "partilhar", "entrar", "adicionar ao carrinho", "política de privacidade", "leggi tutto",
    "continua a leggere", "condividi", "accedi", "aggiungi al carrello", "informativa sulla privacy", "accetta tutti",
    "lees meer", "lees verder", "delen", "inloggen", "in winkelwagen", "privacybeleid",
    # Polish, Russian, Turkish, Chinese, Japanese, Korean
    "czytaj więcej", "czytaj dalej", "udostępnij", "zaloguj się", "zarejestruj się", "dodaj do koszyka",
    "polityka prywatności", "читать далее", "читать дальше", "подробнее", "поделиться", "войти", "регистрация",
    "в корзину", "политика конфиденциальности", "devamını oku", "paylaş", "giriş yap", "sepete ekle",
    "gizlilik politikası", "阅读更多", "閱讀更多", "查看更多", "分享", "登录", "登入", "注册", "加入购物车", "隐私政策", "隱私權政策", "続きを読む", "もっと見る",
    "シェア", "ログイン", "新規登録", "カートに入れる", "プライバシーポリシー", "利用規約", "더 보기", "더보기", "공유하기", "로그인", "회원가입", "장바구니 담기",
    "개인정보처리방침",
)  # fmt: skip
NOTICES = (
    "uses cookies", "use of cookies", "use cookies", "using cookies", "accept cookies", "cookie policy",
    "cookie settings", "cookie preferences", "agree to our terms", "agree to the terms", "enable javascript",
    "javascript is disabled", "all rights reserved", "subscribe to our newsletter", "sign up for our newsletter",
    "you must be logged in", "log in to reply", "share this on", "items in cart", "verwendet cookies",
    "verwenden cookies", "nutzt cookies", "nutzung von cookies", "einsatz von cookies", "alle rechte vorbehalten",
    "utilise des cookies", "utilisons des cookies", "utilisation de cookies", "utilisation des cookies",
    "tous droits réservés", "utiliza cookies", "utilizamos cookies", "uso de cookies", "todos los derechos reservados",
    "usamos cookies", "todos os direitos reservados", "utilizza cookie", "utilizza i cookie", "utilizzo dei cookie",
    "uso dei cookie", "tutti i diritti riservati", "maakt gebruik van cookies", "gebruikt cookies",
    "gebruik van cookies", "alle rechten voorbehouden", "używa plików cookie", "plików cookies",
    "wszelkie prawa zastrzeżone", "использует файлы cookie", "использует cookie", "использование файлов cookie",
    "все права защищены", "çerez kullanımı", "çerezleri kullanır", "tüm hakları saklıdır", "使用cookie", "版权所有", "版權所有",
    "cookieを使用", "クッキーを使用", "쿠키를 사용",
)  # fmt: skip


class Boilerplate(Rewrite):
    """Remove lines that are menus, counters and notices: those that are nothing but a known phrase and numbers, or that
    hold a notice.

    Case, punctuation and numbers do not matter: "Read more »", "12 Likes" and "Share (3)" are known phrases. All other
    lines stay as they are.
    """

    lines: Annotated[Phrases, Field(description="a line goes if this is all there is in it")] = LINES
    notices: Annotated[
        Phrases, Field(description="a line goes if it holds one of these and is not longer than a notice")
    ] = NOTICES
    more_lines: Annotated[Phrases, Field(description="of your own, beside `lines`")] = ()
    more_notices: Annotated[Phrases, Field(description="of your own, beside `notices`")] = ()
    notice_words: Annotated[
        int, Field(description="the most words of a notice; a longer line is text that speaks of it", ge=0)
    ] = 40

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = ("boilerplate_lines_removed",)

    @field_validator("lines", "notices", "more_lines", "more_notices")
    @classmethod
    def _have_words(cls, phrases: Phrases) -> Phrases:
        for phrase in phrases:
            if not phrase_within(phrase):
                raise ValueError(f"{phrase!r} has no word that could be found")
        return phrases

    def prepare(self) -> None:
        """Compile."""
        self.rewrite(pa.record_batch({"text": pa.array(["A line of text."])}))

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        column = text_column(Signals(batch).column("text"))
        data, offsets = room_for(column)
        removed = np.zeros(len(batch), np.int64)
        phrases = trie_of_pairs(
            tuple((phrase_as_line(phrase), WHOLE) for phrase in self.lines + self.more_lines)
            + tuple((phrase_within(phrase), WITHIN) for phrase in self.notices + self.more_notices)
        )
        boilerplate_lines(*column, self.notice_words, properties(), lower_case(), *phrases, data, offsets, removed)
        return rewritten(batch, data, offsets, {"boilerplate_lines_removed": removed})
