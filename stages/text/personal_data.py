"""Personal data out of texts: e-mail and network addresses, numbers of telephones, cards, accounts and US social
security, keys, masked or made harmless.

What is found, what is not, and how often that is right: docs/personal_data.md.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from gristmill.kernels.base.columns import text_array, text_column
from gristmill.kernels.personal_data.spans import (
    KINDS,
    Replacements,
    counts_by_kind,
    find_spans,
    replaced,
    replacements,
)
from gristmill.stages.stage import Applied, Rewrite, Signals, Verdict, with_columns

Kind = Literal["email", "ip", "phone", "card", "iban", "key", "ssn"]
Style = Literal["tag", "fake"]


class PersonalData(Rewrite):
    """Replace personal data in texts by tags such as `<email>`, or by reserved examples, and count it by kind.

    Adds `personal_emails`, `personal_ips`, `personal_phones`, `personal_cards`, `personal_ibans`, `personal_keys`,
    `personal_ssns`: spans replaced in the document (0 for a kind that is not asked for). IP addresses are masked only
    where they are public. Never drops.
    """

    kinds: Annotated[tuple[Kind, ...], Field(description="what to look for", min_length=1)] = (
        "email",
        "ip",
        "phone",
        "card",
        "iban",
        "key",
        "ssn",
    )
    style: Annotated[
        Style,
        Field(description="tag: <email>; fake: an example reserved for documentation, the same for the same span"),
    ] = "tag"
    seed: Annotated[int, Field(description="which example stands for which span, with style fake")] = 0

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = tuple(f"personal_{kind}s" for kind in KINDS)

    def prepare(self) -> None:
        self(pa.table({"text": pa.array(["Write to ann@example.org."])}))

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        column = Signals(batch).column("text")
        data, offsets = text_column(column)
        spans = find_spans(data, offsets, self.kinds)
        counts = counts_by_kind(spans, len(batch))
        columns = {name: pa.array(counts[:, kind]) for kind, name in enumerate(self.adds)}
        if len(spans):
            columns["text"] = text_array(
                *replaced(data, offsets, spans, replacements_of(self.style), self.seed), column
            )
        return Applied(with_columns(batch, columns), Verdict.keep(len(batch)))


@cache
def replacements_of(style: Style) -> Replacements:
    """Fakes are reserved for examples: RFC 2606 names, RFC 5737 and 3849 addresses, 555-01xx numbers; card and IBAN
    numbers that their issuers publish for tests; social security numbers of advertisements. For a key there is none."""
    tags = [[f"<{kind}>"] for kind in (*KINDS, "ip")]
    if style == "tag":
        return replacements(tags)
    emails = [f"user{n}@example.{end}" for end in ("com", "net", "org") for n in range(1, 1000)]
    ips = [f"{net}.{n}" for net in ("192.0.2", "198.51.100", "203.0.113") for n in range(1, 255)]
    phones = [f"+1-{area}-555-{n:04d}" for area in (202, 303, 404, 505, 606, 707, 808, 909) for n in range(100, 200)]
    cards = ["4111 1111 1111 1111", "5555 5555 5555 4444", "3782 822463 10005", "6011 1111 1111 1117"]
    ibans = [
        "GB29 NWBK 6016 1331 9268 19",
        "DE89 3704 0044 0532 0130 00",
        "NL91 ABNA 0417 1643 00",
        "CH93 0076 2011 6238 5295 7",
    ]
    numbers = [f"987-65-{n}" for n in range(4320, 4330)]
    return replacements(
        [emails, ips, phones, cards, ibans, ["<key>"], numbers, [f"2001:db8::{n:x}" for n in range(1, 1000)]]
    )
