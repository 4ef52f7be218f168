"""Strings that an English tokenizer like spaCy cuts by list and not by rule: contractions, times, abbreviations,
emoticons.

The list is that of spaCy 3.8's blank English pipeline, generated from its patterns: word -> its pieces.
"""

from __future__ import annotations

_FACES = r"""
:) :-) :)) :-)) :))) :-))) (: (-: =) (= :] :-] [: [-: [= =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( :-( :(( :-(( :(((
:-((( ): )-: =( >:( :') :'-) :'( :'-( :/ :-/ =/ =| :| :-| ]= =[ :1 :P :-P :p :-p :O :-O :o :-o :0 :-0 :() >:o :* :-* :3
:-3 =3 :> :-> :X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D 8-D ^_^ ^__^ ^___^ >.< >.> <.< ._. ;_; -_- -__- v.v V.V
v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O o.o 0.0 o.0 0.o @_@ <3 <33 <333 </3 (^_^) (-_-) (._.) (>_<) (*_*) (¬_¬)
ಠ_ಠ ಠ︵ಠ (ಠ_ಠ) ¯\(ツ)/¯ (╯°□°）╯︵┻━┻ ><(((*>
"""
_WHOLE = r"""
' '' \") \t \n <space> C++ a. b. c. d. e. f. g. h. i. j. k. l. m. n. o. p. q. r. s. t. u. v. w. x. y. z. ä. ö. ü. — doin
goin nothin nuthin ol somethin Doin Goin Nothin Nuthin Ol Somethin doin' goin' nothin' nuthin' ol' somethin' Doin' Goin'
Nothin' Nuthin' Ol' Somethin' em ll nuff 'em 'll 'nuff 'S 's ‘S ‘s and/or w/o 're 'Cause 'cause 'cos 'Cos 'coz 'Coz 'cuz
'Cuz 'bout ma'am Ma'am o'clock O'clock lovin' Lovin' lovin Lovin havin' Havin' havin Havin Mt. Ak. Ala. Apr. Ariz. Ark.
Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich.
Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. Oct. Okla. Ore. Pa. S.C. Sep. Sept. Tenn. Va. Wash. Wis.
'd a.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont.
Mr. Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s.
"""
_PIECES = """
y'|all y|all how|'d|'y How|'d|'y not|'ve not|ve Not|'ve Not|ve can|not Can|not gon|na Gon|na got|ta Got|ta let|'s
Let|'s c'm|on C'm|on
"""
_LEFT_WHOLE = {
    "Ill", "ill", "Its", "its", "Hell", "hell", "Shell", "shell", "Shed", "shed", "were", "Were", "Well", "well",
    "Whore", "whore",
}  # fmt: skip
_NO_PERSON_AFTER_THEM = {"these", "those"}


def exceptions() -> dict[str, tuple[str, ...]]:
    pieces_of: dict[str, tuple[str, ...]] = {word: (word,) for word in (_FACES + _WHOLE).split()}
    for text in _PIECES.split():
        pieces_of[text.replace("|", "")] = tuple(text.split("|"))
    for pieces in _contractions():
        word = "".join(pieces)
        if word not in _LEFT_WHOLE:
            pieces_of[word] = pieces
    for hour in range(1, 13):
        for half in ("a.m.", "am", "p.m.", "pm"):
            pieces_of[f"{hour}{half}"] = (str(hour), half)
    for scale in "cfkCFK":
        pieces_of[f"°{scale}."] = ("°", scale, ".")
    curly = {
        word.replace("'", "’"): tuple(piece.replace("'", "’") for piece in pieces)
        for word, pieces in pieces_of.items()
        if "'" in word
    }
    return curly | pieces_of


def _contractions() -> list[tuple[str, ...]]:
    out: list[tuple[str, ...]] = []

    def add(stems: list[str], *endings: str) -> None:
        """Each stem, also capitalised, with each ending, also without its apostrophes; `|` separates the parts of an
        ending."""
        for stem in stems:
            for first in (stem, stem.title()):
                for ending in endings:
                    out.append((first, *ending.split("|")))
                    out.append((first, *ending.replace("'", "").split("|")))

    add(["i"], "'m", "'m|a")
    add(["i", "you", "he", "she", "it", "we", "they"], "'ll", "'ll|'ve", "'d", "'d|'ve")
    add(["i", "you", "we", "they"], "'ve")
    add(["you", "we", "they"], "'re")
    add(["he", "she", "it"], "'s")
    asking = ["who", "what", "when", "where", "why", "how", "there", "that", "this", "these", "those"]
    add(asking, "'ll", "'ll|'ve", "'d", "'d|'ve")
    add([word for word in asking if word not in _NO_PERSON_AFTER_THEM], "'s")
    add([word for word in asking if word not in {"that", "this"}], "'re", "'ve")
    verbs = [
        "ca",
        "could",
        "do",
        "does",
        "did",
        "had",
        "may",
        "might",
        "must",
        "need",
        "ought",
        "sha",
        "should",
        "wo",
        "would",
    ]
    add(verbs, "n't", "n't|'ve")
    add(["could", "might", "must", "should", "would"], "'ve")
    add(["ai", "are", "is", "was", "were", "have", "has", "dare"], "n't")
    return out
