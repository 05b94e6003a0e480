"""A folder of 8-bit weights as DeepSeek-V3's are published, and what torch makes of them; hf_fp8_test.cc.

  python tests/unit/checkpoint/golden/make_fp8.py      (needs torch and safetensors; see VERSIONS)

The matrices of tests/golden/deepseek_v3's blocks, blocks of 8 x 12 with one scale each (the published ones
have 128 x 128), cut off at the edges; one layer more, which predicts a further token.
"""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

here = pathlib.Path(__file__).parent
model = here.parents[2] / "golden" / "deepseek_v3"
ROWS, COLS = 8, 12
torch.manual_seed(1)


def spread(scales, shape):
    return scales.repeat_interleave(ROWS, 0).repeat_interleave(COLS, 1)[: shape[0], : shape[1]]


def quantise(w):
    padded = torch.nn.functional.pad(w, (0, -w.shape[1] % COLS, 0, -w.shape[0] % ROWS))
    blocks = padded.reshape(padded.shape[0] // ROWS, ROWS, -1, COLS).abs().amax(dim=(1, 3))
    scales = (blocks / 448).clamp(min=1e-12)
    return (w / spread(scales, w.shape)).to(torch.float8_e4m3fn), scales


stored, expected = {}, {}
for name, w in load_file(model / "model.safetensors").items():
    linear = w.dim() == 2 and ".layers." in name and ".mlp.gate.weight" not in name
    if linear:
        codes, scales = quantise(w)
        stored[name], stored[name + "_scale_inv"] = codes, scales
        # As the published conversion does: x.to(f32) * s, rounded once more to bf16.
        expected[name] = (codes.to(torch.float32) * spread(scales, w.shape)).to(torch.bfloat16)
    else:
        stored[name] = w if w.dtype != torch.float32 or "e_score" in name else w.to(torch.bfloat16)
config = json.loads((model / "config.json").read_text())
further = f"model.layers.{config['num_hidden_layers']}"
stored[further + ".eh_proj.weight"], stored[further + ".eh_proj.weight_scale_inv"] = quantise(torch.randn(9, 18))
config["num_nextn_predict_layers"] = 1
config["auto_map"] = {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}
config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                 "weight_block_size": [ROWS, COLS]}
every = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)
expected["codes"] = every.to(torch.float32)

folder = here / "fp8"
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
save_file(stored, folder / "model.safetensors")
save_file(expected, here / "fp8_expected.safetensors")
