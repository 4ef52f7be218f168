"""Pages that are not pages: a frame around other pages, a forwarding address, "not found" with status 200, a script's
empty stage, a locked door.

Only a page with few words of text at all is looked at, so that an article about logins is not taken for a login. The
phrases are of the languages that most pages are in; a page in another one is judged by its markup alone. Measured on
the 1,476 reviewed pages of docs/extraction.md, all of which have text: none is called one of these.
"""

from __future__ import annotations

import re

from gristmill.kernels.blocks.features import CHARACTERS, WORDS
from gristmill.kernels.html.names import TAGS
from gristmill.stages.extract.gristmill import SegmentedPage, visible_text

FEW, SHORT = 60, 800  # words and characters on the whole page: a notice and some menu; a page with more is a page
FEWEST = 12  # words: not even a notice
SCRIPT_BYTES = 2000  # of markup at least, before its emptiness is laid to scripts
FRAMES = tuple(TAGS.index(name) for name in ("frameset", "frame"))

REFRESH = re.compile(r"\s*\d*+(?:\.\d*+)?\s*+[;,]?\s*+(?:url\s*+=)?\s*+['\"]?\S")
SCRIPT_MOVES = re.compile(
    rb"(?:window|document|top|self)?\.?location(?:\.href)?\s{0,4}=\s{0,4}[\"'][^\"']|location\.(?:replace"
    rb"|assign)\s{0,4}\("
)
NOT_FOUND = re.compile(
    r"\b404\b|not found|page (?:you|doesn.t|does not|isn.t|cannot|can.t)|no longer (?:exists|available)"
    r"|no encontrad|no existe|introuvable|n.existe pas"
    r"|nicht gefunden|existiert nicht|não encontrad|nao encontrad|non trovat|niet gevonden|nie znaleziono|не найден"
    r"|не знайден|не существует|bulunamad"
    r"|hittades inte|ikke fundet|ei löydy|nenalezen|nem található|nu a fost găsit|δεν βρέθηκε|見つかりません|找不到|不存在|未找到"
    r"|찾을 수 없|لم يتم العثور|לא נמצא|tidak ditemukan"
    r"|không tìm thấy|ไม่พบ",
    re.IGNORECASE,
)
SCRIPT_NAMED = re.compile(r"java\s?script|ジャバスクリプト", re.IGNORECASE)
STAGE = re.compile(
    rb"<(?:div|main|section|app-root|[a-z]+-app)\b[^<>]{0,200}\bid\s{0,4}=\s{0,4}[\"']?(?:root|app|__next|__nuxt"
    rb"|___gatsby|main|mount|react-root|app-root)[\"'\s>]|<app-root\b"
)
PASSWORD = re.compile(rb"<input\b[^<>]{0,1000}?\btype\s{0,4}=\s{0,4}[\"']?password\b", re.IGNORECASE)
LOCKED = re.compile(
    r"\b(?:log|sign)[ -]?in\b|\blogin\b|iniciar sesi|inicia sesi|connexion|se connecter|connectez|anmelden"
    r"|einloggen|entrar\b|fazer login|accedi\b|inloggen|zaloguj"
    r"|войти|войдите|вход\b|увійти|giriş yap|logga in|logg inn|log ind|kirjaudu|přihlá|bejelentkez|autentific"
    r"|σύνδεση|ログイン|登录|登入|로그인|تسجيل الدخول|התחבר|đăng nhập"
    r"|เข้าสู่ระบบ",
    re.IGNORECASE,
)


def no_page(seen: SegmentedPage) -> str | None:
    """Why this is no page with text of its own, in one of REASONS; None where it may be one."""
    words = int(seen.measured.counts[:, WORDS].sum())
    if words > FEW or int(seen.measured.counts[:, CHARACTERS].sum()) > SHORT:
        return None
    if any((seen.page.tag == frame).any() for frame in FRAMES):
        return "frames"
    if moved(seen, words):
        return "redirect"
    text = f"{seen.head.title or ''}\n{visible_text(seen)}"
    if NOT_FOUND.search(text):
        return "not_found_page"
    if LOCKED.search(text) and PASSWORD.search(seen.data):
        return "login_wall"
    if needs_script(seen, words, text):
        return "needs_script"
    return None


def moved(seen: SegmentedPage, words: int) -> bool:
    """By a meta tag that names an address, or by a script on a page that has nothing else."""
    refresh = seen.head.refresh
    if refresh and "=" in refresh and REFRESH.match(refresh):
        return True
    return words <= FEWEST and len(seen.data) < SCRIPT_BYTES and SCRIPT_MOVES.search(seen.data) is not None


def needs_script(seen: SegmentedPage, words: int, text: str) -> bool:
    """It says so itself, or it is an empty stage with a program beside it."""
    if b"<script" not in seen.data.lower():
        return False
    if SCRIPT_NAMED.search(text):
        return True
    return words <= FEWEST and len(seen.data) >= SCRIPT_BYTES and STAGE.search(seen.data) is not None


__all__ = ["no_page"]
