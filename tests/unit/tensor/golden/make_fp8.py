"""What torch makes of 8-bit floats; fp8_test.cc.

  python tests/unit/tensor/golden/make_fp8.py      (needs torch; see tests/golden/VERSIONS)

Lines: "value FORMAT CODE F32BITS" for each of the 256 codes; "from FORMAT CODE BF16BITS": the smallest positive
bf16 that becomes the code (all finite bf16 were converted: codes ascend with them, and negative ones differ by the
sign bit alone, which is checked here); "f32 FORMAT CODE F32BITS" for seeded floats, half of them around ties. Finite
numbers beyond the largest are clamped to it first: torch's own conversion does not saturate.
"""

import pathlib

import torch

torch.manual_seed(8)
lines = []
for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
    largest = torch.finfo(dtype).max

    def codes(x):
        return x.to(torch.float32).clamp(-largest, largest).to(dtype).view(torch.uint8).to(torch.int64)

    values = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float32)
    lines += [f"value {name} {c:02x} {b & 0xFFFFFFFF:08x}" for c, b in enumerate(values.view(torch.int32).tolist())]

    bits = torch.arange(0x7F80, dtype=torch.int32)
    positive = bits.to(torch.int16).view(torch.bfloat16)
    got = codes(positive)
    assert (got[1:] >= got[:-1]).all() and got[0] == 0 and (codes(-positive) == got + 128).all()
    first = {}
    for b, c in zip(bits.tolist(), got.tolist()):
        first.setdefault(c, b)
    lines += [f"from {name} {c:02x} {b:04x}" for c, b in sorted(first.items())]

    finite = values[values.isfinite() & (values > 0)].sort().values.unique()
    ties = ((finite[1:] + finite[:-1]) / 2)[torch.randint(len(finite) - 1, (150,))]
    near = (ties.view(torch.int32) + torch.randint(-1, 2, (150,), dtype=torch.int32)).view(torch.float32)
    spread = torch.randn(150) * torch.exp2(torch.randint(-20, 18, (150,)).to(torch.float32))
    x = torch.cat([near * torch.where(torch.rand(150) < 0.5, -1.0, 1.0), spread])
    for b, c in zip(x.view(torch.int32).tolist(), codes(x).tolist()):
        lines.append(f"f32 {name} {c:02x} {b & 0xFFFFFFFF:08x}")

pathlib.Path(__file__).with_name("fp8.txt").write_text("\n".join(lines) + "\n")
