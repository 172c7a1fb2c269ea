#!/usr/bin/env python3
"""Tests interface_bytes.py with invented counts."""
import unittest

import interface_bytes
import program
from networks import Layout


def result(payload_bytes_sent, rows=(), **more):
    hooks = [{"hook": "int8", "payload_bytes": 1} | row for row in rows]
    return {"hooks": hooks, "payload_bytes_sent": payload_bytes_sent, "warmup_iterations": 3, "iterations": 7} | more


def lines(layout, results, *interfaces):
    return list(interface_bytes.lines(layout, results, interfaces))


class OneRankPerNode(unittest.TestCase):
    def test_what_rank_0_sent_is_the_payload(self):
        found = lines(Layout(2, 1), [result(60_000_000, link={}), result(40_000_000)],
                      {"tx_bytes": 100_200_000, "shaped_bytes": 104_700_000},
                      {"tx_bytes": 100_300_000, "shaped_bytes": 104_800_000})
        self.assertEqual(found, [
            "Node 0: 100.2 MB left its interface, 1.0020 (with the headers of every packet, by its shaper, 1.0470) "
            "of the payload that its ranks sent (100.0 MB).",
            "Node 1: 100.3 MB left its interface, 1.0030 (with the headers of every packet, by its shaper, 1.0480) "
            "of the payload that its ranks sent (100.0 MB)."])

    def test_without_a_shaper_there_is_no_second_count(self):
        self.assertEqual(lines(Layout(2, 1), [result(1_000_000)], {"tx_bytes": 1_100_000}),
                         ["Node 0: 1.1 MB left its interface, 1.1000 of the payload that its ranks sent (1.0 MB)."])


class SeveralRanksPerNode(unittest.TestCase):
    def test_payload_that_the_bench_names_by_node_counts_in_every_iteration(self):
        results = [result(9_000_000, [{"payload_bytes_per_node": 1_000_000}, {"payload_bytes_per_node": 500_000}]),
                   result(9_000_000, [{"payload_bytes_per_node": 100}], iterations=100)]
        self.assertEqual(interface_bytes.payload_of_node(results, Layout(2, 4)), 10 * 1_500_000 + 103 * 100)
        self.assertEqual(lines(Layout(2, 4), results[:1], {"tx_bytes": 15_150_000}),
                         ["Node 0: 15.2 MB left its interface, 1.0100 of the payload that its ranks sent (15.0 MB)."])

    def test_payload_that_it_does_not_name_is_unknown(self):
        results = [result(1_000_000, [{"payload_bytes_per_node": 1}, {}])]
        self.assertIsNone(interface_bytes.payload_of_node(results, Layout(2, 4)))
        self.assertEqual(lines(Layout(2, 4), results, {"tx_bytes": 3_000_000}), [
            "Node 0: 3.0 MB left its interface, 0.7500 of 4 times what rank 0 sent, 4.0 MB; "
            "what each node's ranks sent is unknown."])

    def test_what_was_sent_beside_the_iterations_is_unknown(self):
        for other in ("link", "exactness"):
            results = [result(1_000_000, [{"payload_bytes_per_node": 1}], **{other: {}})]
            self.assertIsNone(interface_bytes.payload_of_node(results, Layout(2, 4)))

    def test_what_ranks_of_one_node_send_each_other_does_not_leave_it(self):
        self.assertEqual(lines(Layout(1, 4), [result(1_000_000, [{"payload_bytes_per_node": 400_000}])], {"tx_bytes": 42}),
                         ["Node 0: 0.0 MB left its interface, 0.0000 of the payload that its ranks sent (4.0 MB)."])


class Nodes(unittest.TestCase):
    def test_must_be_those_that_the_bench_found(self):
        interface_bytes.check_nodes(result(0), Layout(2, 4))  # A build that names no nodes.
        interface_bytes.check_nodes(result(0, nodes={"count": 2, "ranks_per_node": [4, 4]}), Layout(2, 4))
        with self.assertRaisesRegex(program.Failed, "started on 2 nodes of 4 ranks, .* found nodes of 8 ranks"):
            interface_bytes.check_nodes(result(0, nodes={"count": 1, "ranks_per_node": [8]}), Layout(2, 4))


if __name__ == "__main__":
    unittest.main()
