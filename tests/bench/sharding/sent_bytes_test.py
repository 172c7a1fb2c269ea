#!/usr/bin/env python3
"""Tests sent_bytes.py, and the formula in ways.py, with invented counters."""
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "network"))
import sent_bytes  # noqa: E402 -- finds modules by the line above
from networks import Layout  # noqa: E402
from sent_bytes import STEPS, Sent  # noqa: E402
from ways import SIZES, WAYS  # noqa: E402

SIZE = SIZES["10.7M"]


class Formula(unittest.TestCase):
    def bytes_of(self, way, *layout):
        return WAYS[way].sent_bytes(SIZE, Layout(*layout)) / SIZE.parameters

    def test_shards_send_as_much_as_averages_of_the_same_format(self):
        for sharded, whole in (("all_int8", "off_int8"), ("all_fp32", "off_fp32"), ("node_int8", "off_int8")):
            self.assertEqual(self.bytes_of(sharded, 2, 4), self.bytes_of(whole, 2, 4))
        self.assertEqual([self.bytes_of("off_int8", *layout) for layout in ((2, 1), (2, 4), (4, 1))],
                         [1.015625, 1.015625, 1.5234375])
        self.assertEqual([self.bytes_of("all_fp32", nodes, 1) for nodes in (2, 4)], [4, 6])

    def test_a_ring_crosses_each_node_border_once(self):
        self.assertEqual([self.bytes_of("off", *layout) for layout in ((2, 1), (2, 2), (4, 1))], [4, 6, 6])

    def test_a_second_copy_gets_the_averages_of_a_shard(self):
        self.assertEqual([self.bytes_of("all_fp32_copies", nodes, 1) for nodes in (2, 4)], [6, 7])


class Network:
    """Two hosts, of which the second sends a byte more. A training sends 5,000 bytes, and 100 in each step."""
    hosts = 2

    def __init__(self, has_shaper=True):
        self.sent = 77
        self.has_shaper = has_shaper
        self.commands = []

    def counters(self, node):
        counters = {"tx_bytes": self.sent * (1 + node)}
        return counters | {"shaped_bytes": 2 * self.sent * (1 + node)} if self.has_shaper else counters

    def run_ranks(self, command):
        self.commands.append(command)
        self.sent += 5000 + 100 * int(command[-1].removeprefix("--steps="))


class PerStep(unittest.TestCase):
    def test_what_is_sent_once_does_not_count(self):
        network = Network()
        self.assertEqual(sent_bytes.per_step(list(sent_bytes.counted(network, "off_int8", ["train"]))), Sent(200, 400))
        self.assertEqual([command[-1] for command in network.commands], [f"--steps={steps}" for steps in STEPS])

    def test_a_network_without_a_shaper_has_one_count(self):
        counted = list(sent_bytes.counted(Network(has_shaper=False), "off", ["train"]))
        self.assertEqual(sent_bytes.per_step(counted), Sent(200))

    def test_nothing_is_measured_meanwhile(self):
        for way, has_link in (("off_int8", True), ("off", False)):
            network = Network()
            list(sent_bytes.counted(network, way, ["train"]))
            self.assertIn("--bucket_cap_mb=6", network.commands[0])
            self.assertEqual("--link_gbit=1" in network.commands[0], has_link)


class Tables(unittest.TestCase):
    def test_a_ratio_beyond_a_hundredth_is_missed(self):
        formula = WAYS["all_int8"].sent_bytes(SIZE, Layout(2, 1))
        found = {"all_int8": Sent(1.002 * formula, 1.05 * formula), "all_fp32": Sent(4.05 * SIZE.parameters)}
        rows = sent_bytes.rows(found, SIZE, Layout(2, 1))
        self.assertEqual(rows[1][3:], ["1.0020", "1.0500"])
        self.assertEqual(rows[2][3:], ["1.0125", ""])
        self.assertEqual([check.verdict for check in sent_bytes.checks(found, SIZE, Layout(2, 1))], ["holds", "MISSED"])


if __name__ == "__main__":
    unittest.main()
