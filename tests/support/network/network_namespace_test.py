#!/usr/bin/env python3
"""Tests network_namespace.py, and compares the payload that narrowcast-bench and narrowcast-train count with an
interface's own counters.

Usage: network_namespace_test.py NARROWCAST_BENCH NARROWCAST_TRAIN NARROWCAST_TEST_WIRE. Exit code 77 (skipped) if
namespaces cannot be made."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import network_namespace
from network_namespace import Network, RankFailed

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[3]
narrowcast_bench = None
narrowcast_train = None
narrowcast_test_wire = None


def namespaces():
    return subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout


class NetworkTest(unittest.TestCase):
    def test_hosts_differ_and_ranks_know_their_place(self):
        with Network(hosts=3) as network:
            outputs = network.run_ranks(["sh", "-c", "echo $RANK of $WORLD_SIZE; ip -o -4 address show dev eth0"])
        for rank, output in enumerate(outputs):
            self.assertIn(f"{rank} of 3\n", output)
            self.assertIn(f"10.77.0.{rank + 1}/24", output)

    def test_ranks_that_share_a_host_share_its_interface(self):
        script = ("echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on node $GROUP_RANK of $GROUP_WORLD_SIZE;"
                  "ip -o -4 address show dev eth0")
        with Network(hosts=2, ranks_per_host=3) as network:
            outputs = network.run_ranks(["sh", "-c", script])
        self.assertEqual(len(outputs), 6)
        for rank, output in enumerate(outputs):
            self.assertIn(f"{rank} of 6, {rank % 3} of 3 on node {rank // 3} of 2\n", output)
            self.assertIn(f"10.77.0.{rank // 3 + 1}/24", output)

    def test_each_hosts_egress_is_shaped(self):
        with Network(hosts=2, rate="1gbit") as network:
            for host in range(2):
                shown = subprocess.run(network.command(host, ["tc", "qdisc", "show", "dev", "eth0"]), check=True,
                                       capture_output=True, text=True).stdout
                self.assertIn("tbf", shown)
                self.assertIn("rate 1Gbit burst", shown)

    def test_a_failing_rank_ends_the_others_and_is_named(self):
        network_namespace.SECONDS_TO_END = 0
        with Network(hosts=2) as network, self.assertRaisesRegex(RankFailed, "rank 1 ended with code 7: it broke"):
            network.run_ranks(["sh", "-c", "test $RANK = 0 && exec sleep 1000; echo it broke >&2; exit 7"])

    def test_ranks_that_never_end_are_stopped(self):
        network_namespace.SECONDS_TO_END = 0
        with Network(hosts=2) as network, self.assertRaisesRegex(RankFailed, "not done within 0 s: sleep 1000"):
            network.run_ranks(["sleep", "1000"], limit_seconds=0)

    def test_nothing_is_left_behind(self):
        with self.assertRaises(ZeroDivisionError), Network(hosts=2) as network:
            name = network.command(0, [])[3]
            self.assertIn(name, namespaces())
            raise ZeroDivisionError
        self.assertNotIn(name, namespaces())

    def test_what_a_killed_process_left_goes_with_the_next_network(self):
        gone = subprocess.Popen(["true"])
        gone.wait()
        left = f"narrowcast-{gone.pid}-0"
        subprocess.run(["ip", "netns", "add", left], check=True)
        with Network(hosts=1):
            self.assertNotIn(left, namespaces())


# Host 0 sends host 1 a byte and receives it back, five times, and prints the shortest round trip in seconds.
ROUND_TRIPS = r"""
import os, socket, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    connection = socket.create_server(address).accept()[0]
    connection.settimeout(PATIENCE)
    least = float("inf")
    for _ in range(5):
        begin = time.monotonic()
        connection.sendall(b"x")
        if not connection.recv(1):
            break
        least = min(least, time.monotonic() - begin)
    print(least)
else:
    while True:
        try:
            connection = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            pass
    while (told := connection.recv(1)):
        connection.sendall(told)
"""


class WireTest(unittest.TestCase):
    def round_trip(self, network):
        return float(network.run_ranks([sys.executable, "-c", ROUND_TRIPS.replace("PATIENCE", "60")])[0])

    def test_a_long_wire_delays_what_goes_either_way(self):
        with Network(hosts=2, wire=narrowcast_test_wire) as network:
            network.set_wire(0, delay_ms=15)
            network.set_wire(1, delay_ms=35)
            self.assertGreaterEqual(self.round_trip(network), 0.1)
            network.set_wire(0)
            network.set_wire(1)
            self.assertLess(self.round_trip(network), 0.1)

    def test_a_cut_wire_brings_nothing(self):
        network_namespace.SECONDS_TO_END = 0
        with Network(hosts=2, wire=narrowcast_test_wire) as network:
            network.set_wire(1, loss=1)
            with self.assertRaisesRegex(RankFailed, "not done within 2 s"):
                network.run_ranks([sys.executable, "-c", ROUND_TRIPS.replace("PATIENCE", "60")], limit_seconds=2)

    def test_tcp_makes_up_for_what_a_wire_loses(self):
        with Network(hosts=2, wire=narrowcast_test_wire) as network, tempfile.TemporaryDirectory() as folder:
            network.set_wire(0, loss=0.01)
            file = pathlib.Path(folder) / "bench.json"
            network.run_ranks([narrowcast_bench, "--nokernels", "--nolink", "--bucket_mib=1", "--iterations=5",
                               "--hooks=allreduce,int8", f"--json={file}"])
            self.assertTrue(all(row["replicas_equal"] for row in json.loads(file.read_text())["exactness"]))


def run_and_count(network, command):
    """The bytes that host 0 sends during the command."""
    before = network.counters(0)["tx_bytes"]
    network.run_ranks(command)
    return network.counters(0)["tx_bytes"] - before


class PayloadTest(unittest.TestCase):
    """payload <= interface's bytes <= 1.06 payload + 64 KiB: headers, acknowledgements, connecting, barriers, and TCP's
    retransmissions because a busy machine acknowledges late."""

    OVERHEAD = 64 << 10

    def assert_is_payload(self, sent, payload, overhead_elsewhere=0):
        self.assertGreater(payload, 1 << 20)
        self.assertGreaterEqual(sent, payload - overhead_elsewhere)
        self.assertLessEqual(sent, 1.06 * payload + self.OVERHEAD)

    def test_of_the_bench(self):
        with Network(hosts=2) as network, tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "bench.json"
            sent = run_and_count(network, [narrowcast_bench, "--nokernels", "--nolink", "--bucket_mib=1", "--buckets=2",
                                           "--iterations=5", f"--json={file}"])
            self.assert_is_payload(sent, json.loads(file.read_text())["payload_bytes_sent"])

    def test_none_leaves_a_host_that_all_ranks_share(self):
        with Network(hosts=1, rate="1gbit", ranks_per_host=2) as network:
            sent = run_and_count(network, [narrowcast_bench, "--nokernels", "--nolink", "--bucket_mib=1", "--buckets=2",
                                           "--iterations=5", "--hooks=allreduce"])
        self.assertLess(sent, 4 << 10)

    def test_of_a_training(self):
        """Compares the difference between two trainings of different lengths, as both send the first parameters. The
        shorter one's bytes beside its payload are subtracted from the longer one's bytes; they are less than the block
        scales' share, 1.5%. The bucket size and the link are given, because measuring them takes a varying number of
        bytes."""
        def train(network, hook, steps):
            with tempfile.TemporaryDirectory() as folder:
                output = pathlib.Path(folder) / "run"
                data = ",".join(map(str, sorted((ROOT / "docs").glob("*.md"))))
                sent = run_and_count(network, [narrowcast_train, "--model=char_gpt", f"--data={data}", f"--hook={hook}",
                                               "--bucket_cap_mb=25", "--link_gbit=1", "--link_us=50",
                                               "--batch_size=2", f"--steps={steps}",
                                               f"--output_dir={output}"])
                last = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
            return sent, last["payload_bytes_sent"]

        for hook in ("int8", "int4"):
            with self.subTest(hook=hook), Network(hosts=2) as network:
                short, long = train(network, hook, 2), train(network, hook, 42)
                payload = long[1] - short[1]
                self.assertLess(self.OVERHEAD, 0.015 * payload)
                self.assert_is_payload(long[0] - short[0], payload, overhead_elsewhere=self.OVERHEAD)


if __name__ == "__main__":
    problem = network_namespace.missing_requirement()
    if problem:
        print("SKIPPED: " + problem)
        sys.exit(SKIPPED)
    narrowcast_bench, narrowcast_train, narrowcast_test_wire = (sys.argv.pop(1) for _ in range(3))
    unittest.main(verbosity=2)
