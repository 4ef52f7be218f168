"""MinHash on the GPU: text to signatures or band hashes, bit for bit those of `gristmill.kernels.duplicates.minhash`
and `gristmill.kernels.duplicates.minhash_rules`.

A place of a signature holds (round that filled it, value) in 64 bits and only ever decreases. The result does not
depend on the order of programs, so all run flat over tokens, a document may span any number of programs, and rounds may
run in any order. Rounds run in batches that double in size, for all shingles of the documents that still have an empty
place; surplus rounds change nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl

from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.splitmix import mixed_plain
from gristmill.kernels.base.types import Array, Hashes, Offsets
from gristmill.kernels.duplicates.minhash_rules import ROUND_STEP as _ROUND_STEP
from gristmill.kernels.gpu.tokens import TOKEN_CHUNK, Tiles, device_tokens, fill, most_tokens, not_above, room
from gristmill.kernels.gpu.transfer import Piece, column_tensor, default_device, through_device
from gristmill.kernels.words.token_rules import SHINGLE_STEP as _SHINGLE_STEP, SHORT as _SHORT

ROUND_STEP, SHINGLE_STEP, SHORT = tl.constexpr(_ROUND_STEP), tl.constexpr(_SHINGLE_STEP), tl.constexpr(_SHORT)
FIRST_MIX, SECOND_MIX = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
HALF, EMPTY = tl.constexpr((1 << 32) - 1), tl.constexpr((1 << 63) - 1)

MOST_PLACES = 1 << 16
MOST_HELD = 1 << 25  # places of a piece, 8 bytes each: so many documents are signed at a time

TILES = Tiles()
PIECE_BYTES = 128 << 20  # smaller pieces wait for the CPU to launch kernels; larger ones only take memory
LANES = 4  # pieces in flight; each may take 18 bytes of memory a byte


def band_hashes(
    column: TextColumn,
    *,
    width: int = 5,
    bands: int,
    rows: int,
    seed: int = 0,
    places: int | None = None,
    device: torch.device | None = None,
) -> tuple[Hashes, Offsets]:
    """uint64[documents, bands], and the number of shingles of each document, with repeats. The bands of a document
    without shingles are undefined."""
    places = bands * rows if places is None else places
    return sign(
        column_tensor(column),
        column.offsets,
        banded(bands, rows, places),
        width,
        places,
        seed,
        device or default_device(),
    )


def signatures(
    column: TextColumn, *, width: int = 5, places: int = 128, seed: int = 0, device: torch.device | None = None
) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    """uint32[documents, places]; all zero for a document without tokens."""
    return sign(column_tensor(column), column.offsets, values_alone, width, places, seed, device or default_device())[0]


def sign(
    data: torch.Tensor,
    offsets: Offsets,
    finish: Callable[[torch.Tensor], torch.Tensor],
    width: int,
    places: int,
    seed: int,
    device: torch.device,
    tiles: Tiles = TILES,
    piece_bytes: int = PIECE_BYTES,
    lanes: int = LANES,
) -> tuple[Array, Offsets]:
    """What `finish` makes of the places of each document, and its number of shingles. The text may be on the device, in
    pinned memory (copied from there) or elsewhere (copied through pinned memory)."""
    if width < 1:
        raise ValueError(f"a shingle of {width} tokens: at least one is needed")
    if not 0 < places <= MOST_PLACES:
        raise ValueError(f"a signature of {places} places: between 1 and {MOST_PLACES} are possible")
    salt = mixed_plain(seed % (1 << 64))
    salt -= (salt >> 63) << 64  # one type of argument for every seed

    def work(piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
        held, counts = held_places(piece, width, places, salt, tiles)
        return finish(held), counts

    signed, counts = through_device(data, offsets, device, work, piece_bytes, max(MOST_HELD // places, 1), lanes)
    return signed, counts.astype(np.int64)


def banded(bands: int, rows: int, places: int) -> Callable[[torch.Tensor], torch.Tensor]:
    if not 0 < bands * rows <= places:
        raise ValueError(f"{bands} bands of {rows} rows do not fit in {places} places")

    def finish(held: torch.Tensor) -> torch.Tensor:
        out = torch.empty((len(held), bands), dtype=torch.uint64, device=held.device)
        _hash_bands[(triton.cdiv(out.numel(), 128),)](
            held, out.view(torch.int64), out.numel(), places, BANDS=bands, ROWS=rows, TILE=128
        )
        return out

    return finish


def values_alone(held: torch.Tensor) -> torch.Tensor:
    return torch.where(held == EMPTY.value, 0, held & HALF.value).to(torch.uint32)


def held_places(piece: Piece, width: int, places: int, salt: int, tiles: Tiles) -> tuple[torch.Tensor, torch.Tensor]:
    """int64[documents, places]: the round that filled a place, above the lower 32 bits, and its value; and the number
    of shingles."""
    device, documents = piece.data.device, len(piece.offsets) - 1
    held = torch.full((documents, places), EMPTY.value, dtype=torch.int64, device=device)
    tokens = device_tokens(piece.data, piece.size, piece.offsets, tiles)
    most = most_tokens(piece.size, documents)
    shingles, owners = torch.empty_like(tokens.hashes), torch.empty(room(most), dtype=torch.int32, device=device)
    programs = (fill(device, triton.cdiv(most, tiles.tokens), tiles.token_warps),)
    shape = {"PLACES": places, "TILE": tiles.tokens, "num_warps": tiles.token_warps}
    steps = (documents + 1).bit_length()
    _first_round[programs](
        tokens.hashes, tokens.first, documents, steps, salt, shingles, owners, held, WIDTH=width, **shape
    )
    lacking = (sizes := tokens.first.diff()).clamp(max=1).to(torch.int8)
    spans = (2 * places - 1).bit_length()
    lack = torch.zeros(spans, dtype=torch.int32, device=device)
    for span in range(spans):
        _find_lacking[(triton.cdiv(documents, 8),)](
            held, documents, lacking, lack, span, PLACES=places, ROWS=8, TILE=128
        )
        begin, end = 1 << span, min(2 << span, 2 * places)
        _later_rounds[programs](
            tokens.first, documents, shingles, owners, lacking, lack, span, held, begin, end, **shape
        )
    return held, torch.where(sizes < width, sizes.clamp(max=1), sizes - (width - 1))


@triton.jit
def mixed(x):
    x = (x ^ x >> 30) * FIRST_MIX
    x = (x ^ x >> 27) * SECOND_MIX
    return x ^ x >> 31


@triton.jit
def _fall(held, owner, place, round_, h, there, PLACES: tl.constexpr):
    """Puts a shingle into its place if that holds nothing less. The place is read first: most shingles find it taken,
    and a stale read only costs a needless write."""
    where = held + owner.to(tl.int64) * PLACES + place
    value = (h & HALF).to(tl.int64) | round_.to(tl.int64) << 32
    less = there & (value < tl.load(where, mask=there, other=0, cache_modifier=".cg"))
    tl.atomic_min(where, value, mask=less, sem="relaxed")


@triton.jit(do_not_specialize=["documents", "steps", "salt"])
def _first_round(
    hashes,
    first,
    documents,
    steps,
    salt,
    shingles,
    owners,
    held,
    WIDTH: tl.constexpr,
    PLACES: tl.constexpr,
    TILE: tl.constexpr,
):
    count = tl.load(first + documents)
    for tile in range(tl.program_id(0), tl.cdiv(count, TILE), tl.num_programs(0)):
        token = tile * TILE + tl.arange(0, TILE)
        there = token < count
        owner = tl.where(there, not_above(first, documents + 1, steps, token) - 1, 0)
        begin, end = tl.load(first + owner), tl.load(first + owner + 1)
        taken = tl.minimum(end - token, WIDTH)
        shingle = tl.zeros([TILE], tl.uint64)
        for k in range(WIDTH):
            here = there & (k < taken)
            token_hash = tl.load(hashes + token + k, mask=here, other=0).to(tl.uint64)
            shingle = tl.where(here, shingle * SHINGLE_STEP + token_hash, shingle)
        short = taken < WIDTH  # a document of fewer tokens is one shingle
        shingle += tl.where(short, taken.to(tl.uint64) * SHORT, 0)
        shingle = mixed(shingle + salt.to(tl.uint64))
        there &= (short == 0) | ((token == begin) & (end - begin < WIDTH))
        tl.store(shingles + token, shingle.to(tl.int64), mask=token < count)
        tl.store(owners + token, tl.where(there, owner, -1), mask=token < count)
        _fall(held, owner, ((shingle >> 32) * PLACES) >> 32, tl.zeros([TILE], tl.int32), shingle, there, PLACES)


@triton.jit(do_not_specialize=["documents", "span"])
def _find_lacking(held, documents, lacking, lack, span, PLACES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Which documents that lacked a value still do, and how many."""
    document = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    asked = tl.load(lacking + document, mask=document < documents, other=0) != 0
    if tl.max(asked.to(tl.int32), 0) > 0:
        empty = tl.zeros([ROWS, TILE], tl.int32)
        for part in range(0, PLACES, TILE):
            place = part + tl.arange(0, TILE)
            there = asked[:, None] & (place < PLACES)[None, :]
            value = tl.load(held + document[:, None].to(tl.int64) * PLACES + place[None, :], mask=there, other=0)
            empty |= (value == EMPTY).to(tl.int32)
        lacks = tl.max(empty, 1)
        tl.store(lacking + document, lacks.to(tl.int8), mask=asked)
        tl.atomic_add(lack + span, tl.sum(lacks, 0), sem="relaxed")


@triton.jit(do_not_specialize=["documents", "span", "round_begin", "round_end"])
def _later_rounds(
    first,
    documents,
    shingles,
    owners,
    lacking,
    lack,
    span,
    held,
    round_begin,
    round_end,
    PLACES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Rounds for the documents that lack a value. In round PLACES + i all shingles fall into place i."""
    count = tl.load(first + documents)
    if tl.load(lack + span) == 0:
        count = 0
    for tile in range(tl.program_id(0), tl.cdiv(count, TILE), tl.num_programs(0)):
        token = tile * TILE + tl.arange(0, TILE)
        owner = tl.load(owners + token, mask=token < count, other=-1)
        there = tl.load(lacking + owner, mask=owner >= 0, other=0) != 0
        if tl.max(there.to(tl.int32), 0) > 0:
            shingle = tl.load(shingles + token, mask=there, other=0).to(tl.uint64)
            for round_ in range(round_begin, round_end):
                turn = tl.zeros([TILE], tl.int32) + round_
                h = mixed(shingle + turn.to(tl.uint64) * ROUND_STEP)
                place = tl.where(turn < PLACES, (((h >> 32) * PLACES) >> 32).to(tl.int32), turn - PLACES)
                _fall(held, owner, place, turn, h, there, PLACES)


@triton.jit(do_not_specialize=["count"])
def _hash_bands(held, out, count, places, BANDS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = index < count
    band = index % BANDS
    row = held + (index // BANDS).to(tl.int64) * places + band * ROWS
    h = mixed((band + 1).to(tl.uint64))
    for _ in range(ROWS):
        value = tl.load(row, mask=there, other=0)
        h = (h ^ tl.where(value == EMPTY, 0, value & HALF).to(tl.uint64)) * TOKEN_CHUNK
        h ^= h >> 32
        row += 1
    tl.store(out + index, mixed(h).to(tl.int64), mask=there)
