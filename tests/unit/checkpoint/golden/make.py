"""Files as the safetensors library writes them; safetensors_test.cc holds reader and writer against them.

  python tests/unit/checkpoint/golden/make.py      (needs torch and safetensors; VERSIONS says which made these)
"""

import pathlib
import platform

import safetensors
import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent

# Every type that trireme has, a scalar, an empty tensor, a name beyond ASCII with a quote in it.
ours = {
    "w.f64": torch.tensor([1 / 3, -2.5e300], dtype=torch.float64),
    "w.f32": torch.arange(6, dtype=torch.float32).reshape(3, 2) / 7,
    "w.f16": torch.tensor([0.1, -65504.0, 2.0**-24, float("inf"), 0.0], dtype=torch.float16),
    "w.bf16": torch.tensor([0.1], dtype=torch.bfloat16),
    "w.i64": torch.tensor([[[-(2**40), 5]], [[7, 2**62]]]),
    "w.i32": torch.tensor(-123456789, dtype=torch.int32),
    "w.u16": torch.tensor([0, 1, 65535], dtype=torch.uint16),
    "w.u8": torch.arange(7, dtype=torch.uint8) * 40,
    "a.empty": torch.zeros((0, 4), dtype=torch.float32),
    'gr\u00f6\u00dfe "q"\n': torch.tensor([1.5], dtype=torch.float32),
}
save_file(ours, here / "types.safetensors", metadata={"format": "pt"})

# Types that trireme has not: the file opens, these tensors cannot be read.
foreign = {
    "mask": torch.tensor([True, False, True]),
    "i8": torch.tensor([-1, 2], dtype=torch.int8),
    "f8": torch.tensor([1.0, 2.0], dtype=torch.float8_e4m3fn),
    "x": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
}
save_file(foreign, here / "foreign.safetensors")

versions = f"python {platform.python_version()}\ntorch {torch.__version__}\nsafetensors {safetensors.__version__}\n"
(here / "VERSIONS").write_text(versions)
