"""The decoder's kernels compile for Hopper in bf16, with 16-byte accesses and no spilled registers: no GPU is needed
for that, and the interpreter, which allows what the compiler refuses, cannot tell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.run

pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

COMPILE = """
import re
import subprocess
import tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gristmill.kernels.gpu import adamw, cross_entropy, nearest, packed_attention, rms_norm, rotary, swiglu

ROWS = {"rows": "i32", "eps": "fp32"}
MATRIX = {"tokens": "i32", "inner": "i32"}
TOKENS = {"tokens": "i32", "table": "i32"}
LOGITS = {"targets": "*i64", "losses": "*fp32", "stride": "i32", "z": "fp32"}
STEP = {name: "fp32" for name in ("new", "keep", "new_square", "eps", "decay")} | {"size": "i32"}
STEP |= {name: "*fp32" for name in ("master", "mean", "square", "scalars")}
norm, back = rms_norm._shape(2048, rms_norm.FORWARD), rms_norm._shape(2048, rms_norm.BACKWARD) | {"STAGES": rms_norm.BACKWARD.stages}
turn, _ = rotary._shape(99, 32, 8, 64, rotary.TILE)
gates, _ = swiglu._shape(99, 8192, swiglu.TILE)
TEXTS = {"cuts": "*i32", "firsts": "*fp32", "shrink": "*fp32", "scale": "fp32"} | {name: "i32" for name in ("texts", "stride", "width")}
attention = {"SIZE": 64, "QUERIES": packed_attention.TILE.queries, "KEYS": packed_attention.TILE.keys}
logits = {"VOCABULARY": 50_304, "BLOCK": cross_entropy.TILE.columns}
NEAREST = {"vectors": "*i8", "centres": "*i8", "inverse": "*fp32", "place": "*i32", "best": "*fp32", "count": "i32", "of": "i32"}
found = {"WIDTH": 256, "ROWS": nearest.TILE.rows, "CENTRES": nearest.TILE.centres, "NUMBERS": nearest.TILE.numbers}
KERNELS = [
    (nearest._nearest, NEAREST, found, nearest.TILE.warps),
    (rms_norm._normed, {"scales": "*fp32"} | ROWS, norm, rms_norm.FORWARD.warps),
    (rms_norm._sum_normed, {"scales": "*fp32"} | ROWS, norm, rms_norm.FORWARD.warps),
    (rms_norm._slopes, {"scales": "*fp32", "parts": "*fp32", "rows": "i32"}, back, rms_norm.BACKWARD.warps),
    (rms_norm._slopes, {"scales": "*fp32", "parts": "*fp32", "rows": "i32"}, back | {"flowing": None}, rms_norm.BACKWARD.warps),
    (rotary._turn, {"cos": "*fp32", "sin": "*fp32", "positions": "*i32"} | TOKENS, turn, rotary.TILE.warps),
    (rotary._turn_back, {"cos": "*fp32", "sin": "*fp32"} | TOKENS, turn | {"positions": None}, rotary.TILE.warps),
    (swiglu._forward, MATRIX, gates, swiglu.TILE.warps),
    (swiglu._backward, MATRIX, gates, swiglu.TILE.warps),
    (cross_entropy._losses, LOGITS, logits, cross_entropy.TILE.warps),
    (cross_entropy._losses_and_slopes, LOGITS, logits, cross_entropy.TILE.warps),
    (adamw._step, STEP, {"BLOCK": adamw.TILE.elements}, adamw.TILE.warps),
    (packed_attention._attended, TEXTS | {"answer": "*fp8e4nv"}, attention, packed_attention.TILE.warps),
    (packed_attention._attended, TEXTS, attention | {"firsts": None, "shrink": None}, packed_attention.TILE.warps),
]
for kernel, types, constants, warps in KERNELS:
    types = {name: "constexpr" if name in constants else types.get(name, "*bf16") for name in kernel.arg_names}
    whole = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind.startswith(("*", "i"))}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    made = triton.compile(ASTSource(kernel, types, values, whole), target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        used = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    wide = len(re.findall(r"(?:ld|st)\\.global[^ ]*\\.v4\\.b32|cp\\.async\\.cg[^;]*, 0x10", made.asm["ptx"]))
    print(kernel.__name__, wide, re.search(r"STACK:(\\d+)", used)[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for CUDA is there on Linux")
def test_every_kernel_compiles_for_hopper_in_bf16():
    ran = subprocess.run(
        [sys.executable, "-c", COMPILE], text=True, capture_output=True, timeout=300, cwd=Path(__file__).parents[3],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = re.findall(r"^(\w+) (\d+) (\d+)$", ran.stdout, re.M)
    assert len(found) == 14
    assert [name for name, wide, stack in found if int(wide) < 2 or int(stack)] == []
