"""The steps of narrowcast::optim::Muon are those of torch.optim.Muon, bit for bit, on matrices of a GPT with 10.7 million
parameters and on others."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch

PROGRAM = os.environ["NARROWCAST_MUON_STEPS"]
SHAPES = [(1152, 384), (384, 384), (1536, 384), (384, 1536), (192, 64), (64, 256), (10, 128), (1, 9), (9, 1), (33, 70)]
STEPS = 3
USUAL = {"lr": .02, "weight_decay": .1, "momentum": .95, "nesterov": True, "ns_steps": 5, "eps": 1e-7, "adjust_lr_fn": "original"}
CASES = {"usual": {}, "moonlight": {"adjust_lr_fn": "match_rms_adamw", "lr": 1e-3}, "without_nesterov": {"nesterov": False},
         "other_numbers": {"ns_steps": 3, "eps": 1e-3, "momentum": .9, "weight_decay": 0., "lr": .1}}


def to_bytes(tensors):
    return b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)


class MuonTest(unittest.TestCase):
    def test_every_step_has_pytorchs_bits(self):
        torch.set_num_threads(1)
        for name, changes in CASES.items():
            options = USUAL | changes
            generator = torch.Generator().manual_seed(len(name))
            matrices = [torch.randn(shape, generator=generator).mul_(.02).requires_grad_() for shape in SHAPES]
            gradients = [[torch.randn(shape, generator=generator).mul_(1e-3) for shape in SHAPES] for _ in range(STEPS)]
            with tempfile.TemporaryDirectory() as folder, self.subTest(name):
                place = pathlib.Path(folder)
                (place / "case.json").write_text(json.dumps({"shapes": SHAPES, "steps": STEPS, "options": options}))
                (place / "numbers.bin").write_bytes(to_bytes(matrices) + b"".join(map(to_bytes, gradients)))
                subprocess.run([PROGRAM, folder], check=True, timeout=100)
                results = (place / "matrices.bin").read_bytes()
                optimizer = torch.optim.Muon(matrices, **options)
                begin = 0
                for step, of_step in enumerate(gradients):
                    for matrix, gradient in zip(matrices, of_step):
                        matrix.grad = gradient
                    optimizer.step()
                    for matrix in matrices:
                        expected = to_bytes([matrix])
                        self.assertEqual(results[begin:begin + len(expected)], expected, f"{tuple(matrix.shape)}, step {step}")
                        begin += len(expected)
                self.assertEqual(begin, len(results))


if __name__ == "__main__":
    unittest.main()
