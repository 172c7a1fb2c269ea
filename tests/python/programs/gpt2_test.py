"""Compares narrowcast's gpt with GPT-2 as its code defines it (openai/gpt-2, and GPT2LMHeadModel of Hugging Face's
transformers), using the layout of weights that they share."""
import math
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from torch.nn import functional

from support import safetensors_file

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 3, 4, 32, 24, 128


def random_weights(generator):
    """Weights with Hugging Face's names and shapes. Weights of Conv1D are [inputs, outputs]."""
    def random(*shape):
        return 0.2 * torch.randn(shape, generator=generator)

    weights = {"wte.weight": random(VOCABULARY, WIDTH), "wpe.weight": random(CONTEXT, WIDTH),
               "ln_f.weight": 1 + random(WIDTH), "ln_f.bias": random(WIDTH)}
    for layer in range(LAYERS):
        for norm in ("ln_1", "ln_2"):
            weights[f"h.{layer}.{norm}.weight"] = 1 + random(WIDTH)
            weights[f"h.{layer}.{norm}.bias"] = random(WIDTH)
        for name, inputs, outputs in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
                                      ("mlp.c_fc", WIDTH, 4 * WIDTH), ("mlp.c_proj", 4 * WIDTH, WIDTH)):
            weights[f"h.{layer}.{name}.weight"] = random(inputs, outputs)
            weights[f"h.{layer}.{name}.bias"] = random(outputs)
    return weights


def gpt2_logits(weights, tokens):
    def norm(x, name):
        return functional.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def conv1d(x, name):
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu_new(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def split_heads(x):
        return x.view(*x.shape[:2], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def attention(x, block):
        query, key, value = (split_heads(part) for part in conv1d(x, f"{block}.attn.c_attn").split(WIDTH, dim=2))
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        shares = torch.where(causal, scores, torch.finfo(scores.dtype).min).softmax(-1)
        return conv1d((shares @ value).permute(0, 2, 1, 3).reshape(x.shape), f"{block}.attn.c_proj")

    x = weights["wte.weight"][tokens] + weights["wpe.weight"][:tokens.shape[1]]
    for layer in range(LAYERS):
        block = f"h.{layer}"
        x = x + attention(norm(x, f"{block}.ln_1"), block)
        x = x + conv1d(gelu_new(conv1d(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")), f"{block}.mlp.c_proj")
    return norm(x, "ln_f") @ weights["wte.weight"].T


class Gpt2(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        generator = torch.Generator().manual_seed(1)
        self.weights = random_weights(generator)
        self.tokens = torch.randint(VOCABULARY, (3, CONTEXT), generator=generator)

    def our_logits(self, file, heads=HEADS):
        safetensors_file.write(self.folder / "tokens.safetensors", {"tokens": self.tokens})
        subprocess.run([os.environ["NARROWCAST_GPT2_LOGITS"], file, str(heads), self.folder / "tokens.safetensors",
                        self.folder / "logits.safetensors"], check=True)
        return safetensors_file.read(self.folder / "logits.safetensors")[0]["logits"]

    def assert_close(self, actual, expected):
        """float32 with another order of sums; logits are of about 1."""
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)

    def test_logits_of_files_as_hugging_face_writes_them(self):
        expected = gpt2_logits(self.weights, self.tokens)
        self.assertGreater(expected.std(), 0.3)
        masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, CONTEXT, CONTEXT).tril() for layer in range(LAYERS)}
        with_head = {f"transformer.{name}": tensor for name, tensor in self.weights.items()}
        with_head["lm_head.weight"] = self.weights["wte.weight"]
        for tensors in (self.weights, self.weights | masks, with_head):
            file = self.folder / "gpt2.safetensors"
            safetensors_file.write(file, tensors, {"format": "pt"})
            self.assert_close(self.our_logits(file), expected)
        self.assertGreater((self.our_logits(file, heads=2) - expected).abs().max(), 0.01, "the comparison sees heads")

    def test_weights_in_16_bits(self):
        for dtype in (torch.float16, torch.bfloat16):
            narrow = {name: tensor.to(dtype) for name, tensor in self.weights.items()}
            safetensors_file.write(self.folder / "narrow.safetensors", narrow)
            expected = gpt2_logits({name: tensor.float() for name, tensor in narrow.items()}, self.tokens)
            self.assert_close(self.our_logits(self.folder / "narrow.safetensors"), expected)

    def test_what_is_written_loads_there(self):
        """A file written after a training loads in PyTorch, and gives the same logits there."""
        start, text = self.folder / "gpt2.safetensors", self.folder / "text.txt"
        safetensors_file.write(start, self.weights)
        text.write_text("the cat sat on the mat. " * 40)
        common = ["--model=gpt", f"--init_from={start}", f"--heads={HEADS}", f"--data={text}", "--device=cpu"]
        subprocess.run([os.environ["NARROWCAST_TRAIN"], *common, "--steps=2", "--batch_size=4",
                        f"--output_dir={self.folder / 'run'}"], check=True, capture_output=True)
        written, metadata = safetensors_file.read(self.folder / "run" / "model.safetensors")
        self.assertEqual(metadata["format"], "pt")
        self.assertEqual({name: tensor.shape for name, tensor in written.items()},
                         {name: tensor.shape for name, tensor in self.weights.items()})
        self.assert_close(self.our_logits(self.folder / "run" / "model.safetensors"), gpt2_logits(written, self.tokens))
        self.assertFalse(written["h.0.mlp.c_fc.weight"].equal(self.weights["h.0.mlp.c_fc.weight"]), "it was trained")


if __name__ == "__main__":
    unittest.main()
