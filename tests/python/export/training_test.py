"""narrowcast-train with a package: real programs over sockets, beside eager PyTorch and a TorchScript module."""
import os
import re
import shutil
import unittest

import safetensors.torch

from export.trainings import INT8, ON_TWO_RANKS, TRAIN, Net, TrainingsTestCase


class Trainings(TrainingsTestCase):
    def test_two_ranks_in_8_bits(self):
        printed = self.run_command(f"{ON_TWO_RANKS}{TRAIN}{INT8}--steps=80 --output_dir=int8")
        accuracies = re.findall(r"accuracy +(\d\S+)", printed)
        self.assertGreater(float(accuracies[-1]), 0.9)
        self.assertIn("replicas         identical on all ranks", printed)
        self.assertEqual({each.name for each in (self.folder / "int8").iterdir()}, {"metrics.jsonl", "model.safetensors"})
        self.assertEqual(self.manifest["tied"], {"again.weight": "middle.weight"})
        self.assertEqual({entry["name"]: entry["persistent"] for entry in self.manifest["state"] if "factor" in entry["name"]},
                         {"scale.factor": False, "again_twice.factor": True})
        net = Net()
        net.load_state_dict(safetensors.torch.load_file(self.folder / "int8/model.safetensors"))
        self.assertTrue(net.again.weight is net.middle.weight)
        self.assertEqual(net.norm.num_batches_tracked, 80)
        evaluated = self.run_command("narrowcast-train --evaluate=int8/model.safetensors --model=net.pt2 --data=mnist")
        self.assertEqual(re.findall(r"accuracy +(\d\S+)", evaluated), accuracies[-1:])
        self.run_command(f"{TRAIN}--steps=1 --init_from=int8/model.safetensors")

    def test_every_hooks_gradients(self):
        printed = self.run_command(f"{ON_TWO_RANKS}narrowcast-train --data=mnist --model=net.pt2 --verify_gradients")
        self.assertIn("int8", printed)
        self.assertNotIn("FAIL", printed)

    def test_resumed_trainings_have_the_same_bits(self):
        for accumulation in ("", "--accumulation_steps=2 "):
            with self.subTest(accumulation=accumulation):
                train = f"{ON_TWO_RANKS}{TRAIN}{INT8}{accumulation}--bucket_cap_mb=0.05 --overwrite "
                parts = f"{train}--output_dir=parts --checkpoint_dir=checkpoints --checkpoint_every=10 --schedule=constant "
                whole = f"{train}--output_dir=whole --schedule=constant --steps=20"
                self.run_command(whole)
                self.run_command(f"{parts}--steps=10")
                self.run_command(f"{parts.replace('--overwrite ', '')}--steps=20 --resume --output_dir=more")
                self.assertEqual(self.digest("more"), self.digest("whole"))
                shutil.rmtree(self.folder / "more")
                shutil.rmtree(self.folder / "checkpoints")

    def test_ranks_with_different_packages(self):
        self.run_command(f"{TRAIN}--steps=1 --output_dir=same --overwrite")
        for rank in range(2):
            shutil.copytree(self.folder / "mnist", self.folder / f"rank{rank}/mnist", dirs_exist_ok=True)
            shutil.copy(self.folder / "same/model.safetensors", self.folder / f"rank{rank}")
            content = bytearray((self.folder / "net.pt2").read_bytes())
            if rank == 1:  # In generated C++ source, which is not used.
                place = content.index(b"#include")
                content[place + 1] ^= 1
            (self.folder / f"rank{rank}/net.pt2").write_bytes(content)
        evaluate = "narrowcast-train --data=mnist --evaluate="
        for command in (f"{TRAIN}--steps=1", f"{evaluate}net.pt2", f"{evaluate}model.safetensors --model=net.pt2"):
            with self.subTest(command=command):
                printed = self.run_command(f"{ON_TWO_RANKS}sh -c 'cd rank$RANK && {command}'", code=2)
                self.assertIn("model_hash", printed)

    def test_the_example_in_cpp(self):
        printed = self.run_command(f"{ON_TWO_RANKS}{os.environ['NARROWCAST_PACKAGE_EXAMPLE']} net.pt2")
        accuracy, sent = re.search(r"accuracy ([\d.]+), (\d+) bytes sent", printed).groups()
        self.assertGreater(float(accuracy), 0.9)
        self.assertGreater(int(sent), 100 * 40_000)  # 8 bits for each of 40,000 parameters.

    def test_errors(self):
        (self.folder / "book.txt").write_text("to be, or not to be\n" * 100)
        (self.folder / "cut.pt2").write_bytes((self.folder / "net.pt2").read_bytes()[:5000])
        shutil.copy(self.folder / "net.pt", self.folder / "script.pt2")
        shutil.copy(self.folder / "net.pt2", self.folder / "package.pt")
        train = TRAIN + "--steps=1 "
        for command, code, message in (
                (train + "--loss=mse", 2, "--loss: has no effect with --model=net.pt2, which contains its loss"),
                (train + "--label_smoothing=0.1", 2, "--label_smoothing: has no effect"),
                (train + "--context=8", 2, "--context: has no effect"),
                (train + "--dropout=0.1", 2, "--dropout: has no effect"),
                (train + "--precision=bf16", 2, "--precision: has no effect with --model=net.pt2, which is compiled"),
                (train + "--device=cuda", 2, "device: must be cpu with the model package net.pt2"),
                (train.replace("--batch_size=64", "--batch_size=1"), 2, "net.pt2: takes from 2 to 65536 samples at once, but got 1"),
                (train.replace("mnist", "book.txt"), 2, "data: net.pt2 takes no sequences of tokens, but the data is text"),
                (train.replace("net.pt2", "none.pt2"), 2, "none.pt2"),
                (train.replace("net.pt2", "cut.pt2"), 2, "cut.pt2: is not a model package, or is damaged"),
                (train.replace("net.pt2", "script.pt2"), 2, "script.pt2: is not a model package: in Python, narrowcast_export"),
                (train.replace("net.pt2", "package.pt --loss=mse"), 4, "it is a model package, which must be named *.pt2"),
                ("TMPDIR=/nowhere " + train, 2, "TMPDIR: cannot create a folder in /nowhere: No such file or directory"),
                ("narrowcast-quantize net.pt2 q.pt2", 2, "input: net.pt2 is a model package: compiled code needs float weights"),
                ("narrowcast-train --evaluate=net.pt2 --loss=mse --data=mnist", 2, "--loss: has no effect with --evaluate of net.pt2")):
            with self.subTest(command=command):
                self.assertIn(message, self.run_command(command, code))

    def test_an_evaluation_needs_the_code(self):
        self.run_command(f"{TRAIN}--steps=1 --output_dir=one --overwrite")
        printed = self.run_command("narrowcast-train --evaluate=one/model.safetensors --data=mnist", 2)
        self.assertIn("without its code; add --model=NET.pt2", printed)
        printed = self.run_command("narrowcast-quantize one/model.safetensors q.safetensors", 2)
        self.assertIn("without its code; compiled code needs float weights; quantise a TorchScript module instead", printed)
        self.assertIn("accuracy", self.run_command("narrowcast-train --evaluate=net.pt2 --data=mnist"))


if __name__ == "__main__":
    unittest.main()
