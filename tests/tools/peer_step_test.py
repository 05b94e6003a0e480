"""tools/peer_step.py counts FLOPs as trireme does, has the models that gpu_check trains, and says what is missing."""
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


def loaded(name, file):
    loader = importlib.machinery.SourceFileLoader(name, str(TOOLS / file))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


peer = loaded("peer_step", "peer_step.py")
sys.path.insert(0, str(TOOLS))
from gpu_checks import steps  # noqa: E402


class PeerStep(unittest.TestCase):
    def test_flops_of_one_model_by_hand(self):
        m = {"arch": "llama", "vocab": 100, "layers": 3, "hidden": 64, "heads": 8, "kv": 2, "ffn": 160, "batch": 2, "seq": 32}
        layer = 64 * 64 * 2 + 2 * 64 * 16 + 3 * 64 * 160  # q and o; k and v of two heads of 8; gate, up, down
        pairs = 32 * 64 * 2 / 2 * 2  # scores and values of half the pairs, 2 FLOPs each, a token
        self.assertEqual(peer.forward_flops(m), 2 * 32 * (2 * (3 * layer + 100 * 64) + 3 * pairs))

    def test_models_are_of_their_size(self):
        def weights(m):
            kv = m.get("kv", m["heads"]) / m["heads"]
            up = 2 if m["arch"] == "llama" else 1
            return m["layers"] * ((2 + 2 * kv) * m["hidden"] ** 2 + (up + 1) * m["hidden"] * m["ffn"]) + m["vocab"] * m["hidden"]

        for name, billions in (("gpt2-124m", 0.1235), ("gpt2-1.5b", 1.555), ("llama-1b", 1.236)):
            self.assertAlmostEqual(weights(peer.MODELS[name]) / 1e9, billions, delta=0.002 * billions, msg=name)

    def test_gpu_check_s_models_are_these(self):
        class Place:
            def __init__(self, out):
                self.out = out

        with tempfile.TemporaryDirectory() as folder:
            for name in steps.MODELS:
                text = steps.run_file(Place(pathlib.Path(folder)), name).read_text()
                keys = dict(line.split(" = ") for line in text.splitlines())
                m = peer.MODELS[name]
                for key, mine in (("vocab", "vocab"), ("layers", "layers"), ("hidden", "hidden"), ("heads", "heads")):
                    self.assertEqual(keys[f"model.{key}"], str(m[mine]), name)
                self.assertEqual(keys["model.arch"], f'"{m["arch"]}"')
                if "kv" in m:
                    self.assertEqual(keys["model.kv_heads"], str(m["kv"]))
                if m["arch"] == "llama":
                    self.assertEqual((keys["model.ffn"], keys["model.tied"]), (str(m["ffn"]), "true"))

    def test_what_is_missing_is_said(self):
        for module in ("torch", "torchao"):
            self.assertFalse(module in sys.modules)
        if importlib.util.find_spec("torch"):
            self.skipTest("PyTorch is here")
        done = subprocess.run([sys.executable, TOOLS / "peer_step.py", "--device", "cuda", "--model", "llama-1b", "--precision",
                               "autocast"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no PyTorch; give a Python that has it", done.stderr)


if __name__ == "__main__":
    unittest.main()
