#!/usr/bin/env python3
"""Launchers of several nodes on separate hosts, which are network namespaces on one bridge, started node by node.

Usage: nodes_on_a_network_test.py NARROWCAST_RUN NARROWCAST_TRAIN. Exit code 77 (skipped) if namespaces cannot be
made."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support" / "network"))
import network_namespace
from network_namespace import Network

SKIPPED = 77
LIMIT_SECONDS = 120
PORT = 29611
QUICK = "--rdzv_conf=keep_alive_interval=0.1,keep_alive_max_attempt=40,heartbeat_timeout=4"
narrowcast_run = None
narrowcast_train = None


def training(folder, steps):
    """A few steps of a small model; rank 0 saves the parameters in `folder`."""
    return [narrowcast_train, "--model=char_gpt", "--layers=1", "--heads=2", "--width=16", "--context=16",
            "--batch_size=12", "--eval_batches=1", "--sample_length=0", "--hook=int8", "--node_size=1", "--link_gbit=1",
            "--link_us=100", f"--steps={steps}",
            f"--output_dir={folder}", "--overwrite"]


class NodesTest(unittest.TestCase):
    """Every host runs one launcher; host 0 serves the store."""

    def start(self, network, host, flags, program):
        command = network.command(host, ["setpriv", "--pdeathsig", "KILL", narrowcast_run] + flags + program)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True)
        self.addCleanup(process.kill)
        return process

    def end(self, process):
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
        return process.returncode, output

    def static(self, network, node_rank, nodes, more=()):
        return [f"--nnodes={nodes}", f"--node_rank={node_rank}", f"--master_addr={network.address(0)}",
                f"--master_port={PORT}", *more]

    def elastic(self, network, nodes, more=()):
        return [f"--nnodes={nodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint={network.address(0)}:{PORT}",
                QUICK + ",last_call_timeout=0.3", *more]

    def parameters(self, folder):
        return (pathlib.Path(folder) / "model.safetensors").read_bytes()

    def trained(self, processes, folder):
        for process in processes:
            code, output = self.end(process)
            self.assertEqual(code, 0, output)
        return self.parameters(folder)

    def test_nodes_train_as_one_node_would(self):
        for nodes in (2, 3):
            with self.subTest(nodes=nodes), Network(hosts=nodes) as network, tempfile.TemporaryDirectory() as folder:
                one = [self.start(network, 0, [f"--nproc_per_node={nodes}"], training(folder + "/one", 3))]
                expected = self.trained(one, folder + "/one")
                # Node 0 starts last: the others wait for it.
                static = [self.start(network, node, self.static(network, node, nodes), training(folder + "/static", 3))
                          for node in reversed(range(nodes))]
                self.assertEqual(self.trained(static, folder + "/static"), expected)
                elastic = [self.start(network, node, self.elastic(network, nodes), training(folder + "/elastic", 3))
                           for node in range(nodes)]
                self.assertEqual(self.trained(elastic, folder + "/elastic"), expected)

    def test_the_store_listens_at_the_named_address_alone(self):
        with Network(hosts=2) as network:
            script = "ss -Hltn | awk '{ print \"listens \" $4 }'"
            first = self.start(network, 0, self.static(network, 0, 2), ["sh", "-c", script])
            second = self.start(network, 1, self.static(network, 1, 2), ["true"])
            code, output = self.end(first)
            self.assertEqual(code, 0, output)
            self.assertEqual(self.end(second)[0], 0)
        self.assertEqual(re.findall(r"listens (\S+)", output), [f"{network.address(0)}:{PORT}"])

    def test_a_host_that_falls_off_the_network_is_noticed(self):
        for lost in (0, 1):
            with self.subTest(lost=lost), Network(hosts=2) as network:
                program = ["sh", "-c", "echo ready; sleep 1000"]
                nodes = [self.start(network, node, self.static(network, node, 2, [QUICK]), program) for node in (0, 1)]
                for node in nodes:
                    self.wait_for_line(node, "ready")
                unplug(network, lost)
                for node in nodes:  # each finds the other gone
                    code, output = self.end(node)
                    self.assertEqual(code, 3, output)
                    self.assertRegex(output, "was lost: no heartbeat for 4 s|no answer; the launcher")

    def test_an_elastic_job_goes_on_without_a_host_that_fell_off(self):
        with Network(hosts=3) as network:
            program = ["sh", "-c", "echo $RANK of $WORLD_SIZE; test $TORCHELASTIC_RESTART_COUNT = 1 || sleep 1000"]
            nodes = [self.start(network, node, self.elastic(network, "2:3"), program) for node in range(3)]
            for node in nodes:
                self.wait_for_line(node, "of 3")
            unplug(network, 2)
            for node in nodes[:2]:
                code, output = self.end(node)
                self.assertEqual(code, 0, output)
                self.assertIn("of 2", output)
                self.assertIn("was lost: no heartbeat for 4 s", output)
            self.assertEqual(self.end(nodes[2])[0], 3)

    def wait_for_line(self, process, text):
        for line in process.stdout:
            if text in line:
                return
        self.fail(f"ended without '{text}'")


def unplug(network, host):
    """Takes the host's link down, so that no goodbye arrives."""
    subprocess.run(network.command(host, ["ip", "link", "set", "dev", "eth0", "down"]), check=True)


if __name__ == "__main__":
    problem = network_namespace.missing_requirement()
    if problem:
        print("SKIPPED: " + problem)
        sys.exit(SKIPPED)
    narrowcast_train = sys.argv.pop(2)
    narrowcast_run = sys.argv.pop(1)
    unittest.main(verbosity=2)
