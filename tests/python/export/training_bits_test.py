"""narrowcast-train with a package, beside the TorchScript module of the same class, and beside other ways to train it."""
import math
import unittest

import safetensors.torch

from export.trainings import INT8, ON_TWO_RANKS, TRAIN, Net, TrainingsTestCase


class Trainings(TrainingsTestCase):
    def test_losses_are_those_of_the_torchscript_module(self):
        """Dropout draws the same numbers, so that losses differ by rounding only."""
        flags = "--hook=none --steps=12 --log_every=1 --output_dir="
        self.run_command(f"{ON_TWO_RANKS}{TRAIN}{flags}compiled")
        script = TRAIN.replace("net.pt2", "net.pt --loss=cross_entropy")
        self.run_command(f"{ON_TWO_RANKS}{script}{flags}script")
        compiled, scripted = self.losses("compiled"), self.losses("script")
        self.assertGreaterEqual(len(compiled), 12)
        self.assertEqual(len(compiled), len(scripted))
        for ours, theirs in zip(compiled, scripted):
            self.assertTrue(math.isclose(ours, theirs, rel_tol=2e-4), (ours, theirs))

    def test_bits_do_not_depend_on_the_overlap(self):
        """With --find_unused_parameters, the gradients are handed out after the step has computed all of them."""
        train = f"{ON_TWO_RANKS}{TRAIN}--steps=12 --bucket_cap_mb=0.05 --overwrite --output_dir="
        digests = {}
        for name, flags in (("overlap", "--hook=none"), ("at_once", "--hook=none --find_unused_parameters"),
                            ("view", "--hook=none --gradient_as_bucket_view"),
                            ("whole_int8", INT8), ("sharded", f"{INT8}--shard_optimizer=all --parameter_format=fp32")):
            self.run_command(f"{train}{name} {flags}")
            digests[name] = self.digest(name)
        self.assertEqual(len({digests[name] for name in ("overlap", "at_once", "view")}), 1, digests)
        self.assertEqual(digests["whole_int8"], digests["sharded"])

    def test_weights_of_the_torchscript_module(self):
        """Both kinds of files contain one class's state_dict(). The module's has all buffers under all names."""
        script = TRAIN.replace("net.pt2", "net.pt --loss=cross_entropy")
        self.run_command(f"{TRAIN}--steps=1 --output_dir=of_package --overwrite")
        printed = self.run_command(f"{script}--steps=1 --init_from=of_package/model.safetensors --output_dir=of_script --overwrite")
        self.assertIn("lacks the buffer", printed)
        self.run_command(f"{TRAIN}--steps=1 --init_from=of_script/model.safetensors")

    def test_weights_without_a_buffer(self):
        weights = {name: value.clone() for name, value in Net().state_dict().items() if name != "norm.running_mean"}
        safetensors.torch.save_file(weights, self.folder / "less.safetensors")
        for command in (f"{TRAIN}--steps=1 --init_from=less.safetensors",
                        "narrowcast-train --evaluate=less.safetensors --model=net.pt2 --data=mnist"):
            self.assertIn("less.safetensors lacks the buffer 'norm.running_mean': the values in net.pt2 are kept",
                          self.run_command(command))


if __name__ == "__main__":
    unittest.main()
