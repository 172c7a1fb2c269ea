#!/usr/bin/env python3
"""A job of two hosts through a WireGuard tunnel, as in docs/explain/security.md.

Usage: nodes_over_wireguard_test.py NARROWCAST_RUN NARROWCAST_TRAIN. Exit code 77 (skipped) if namespaces or tunnels
cannot be made."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support" / "network"))
import network_namespace
import wireguard
from network_namespace import Network
from wireguard import Tunnel

SKIPPED = 77
LIMIT_SECONDS = 120
PORT = 29612
narrowcast_run = None
narrowcast_train = None

# Prints the kinds of the packets that a host's interface sends and receives until standard input ends, one line each:
# Ethernet's type and, for IPv4, protocol and ports.
WATCH = """
import select, socket, struct, sys
ALL, IPV4 = 0x0003, 0x0800
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
packets.bind(("eth0", ALL))
print("watches", flush=True)
seen = {}
waits = True
while waits or select.select([packets], [], [], 0)[0]:
    waits = waits and not select.select([sys.stdin], [], [], 0)[0]
    if select.select([packets], [], [], 0.1 if waits else 0)[0]:
        packet = packets.recv(65536)
        kind = struct.unpack("!H", packet[12:14])
        if kind[0] == IPV4:
            packet = packet[14:]
            kind += (packet[9], *struct.unpack("!HH", packet[packet[0] % 16 * 4:][:4]))
        seen[kind] = seen.get(kind, 0) + len(packet)
for kind, size in sorted(seen.items()):
    print(*kind, size)
"""
ARP, IPV4, IPV6, UDP = 0x0806, 0x0800, 0x86DD, 17


def training(folder, more=()):
    return [narrowcast_train, "--model=char_gpt", "--layers=1", "--heads=2", "--width=16", "--context=16", "--batch_size=12",
            "--eval_batches=1", "--sample_length=0", "--hook=int8", "--node_size=1", "--link_gbit=1", "--link_us=100",
            "--steps=5", f"--output_dir={folder}", *more]


class Watch:
    """The traffic on a host's wire, without the kernel's address resolution."""

    def __init__(self, test, network, host):
        self._program = subprocess.Popen(network.command(host, [sys.executable, "-c", WATCH]), stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        test.addCleanup(self._program.kill)
        self._program.stdout.readline()

    def packets(self):
        """(Ethernet's type, and for IPv4 protocol, source port, target port) -> bytes."""
        lines = self._program.communicate(timeout=LIMIT_SECONDS)[0].splitlines()
        kinds = [tuple(map(int, line.split())) for line in lines]
        return {kind[:-1]: kind[-1] for kind in kinds if kind[0] not in (ARP, IPV6)}


class WireguardTest(unittest.TestCase):
    def start(self, network, host, flags, program):
        process = subprocess.Popen(network.command(host, ["setpriv", "--pdeathsig", "KILL", narrowcast_run] + flags + program),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        return process

    def expect_success(self, process):
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual(process.returncode, 0, output)

    def test_two_hosts_train_as_one_does_and_nothing_travels_outside_the_tunnel(self):
        with Network(hosts=2) as network, Tunnel(network, hosts=2) as tunnel, tempfile.TemporaryDirectory() as folder:
            self.expect_success(self.start(network, 0, ["--nproc_per_node=2"], training(folder + "/one")))
            watch = Watch(self, network, 0)
            hosts = [self.start(network, host, ["--nnodes=2", f"--node_rank={host}", f"--master_addr={tunnel.address(0)}",
                                                f"--master_port={PORT}"],
                                training(folder + "/two", [f"--interface={tunnel.interface(host)}"])) for host in (0, 1)]
            for host in hosts:
                self.expect_success(host)
            packets = watch.packets()
            one, two = (pathlib.Path(folder, name, "model.safetensors").read_bytes() for name in ("one", "two"))
        self.assertEqual(one, two)
        of_the_tunnel = (IPV4, UDP, wireguard.PORT, wireguard.PORT)
        self.assertEqual(set(packets), {of_the_tunnel})
        self.assertGreater(packets[of_the_tunnel], 10_000)

    def test_without_the_tunnel_the_watch_sees_the_job(self):
        with Network(hosts=2) as network, tempfile.TemporaryDirectory() as folder:
            watch = Watch(self, network, 0)
            hosts = [self.start(network, host, ["--nnodes=2", f"--node_rank={host}", f"--master_addr={network.address(0)}",
                                                f"--master_port={PORT}"], training(folder)) for host in (0, 1)]
            for host in hosts:
                self.expect_success(host)
            self.assertTrue(any(PORT in kind for kind in watch.packets()))


if __name__ == "__main__":
    problem = network_namespace.missing_requirement() or wireguard.missing_requirement()
    if problem:
        print("SKIPPED: " + problem)
        sys.exit(SKIPPED)
    narrowcast_train = sys.argv.pop(2)
    narrowcast_run = sys.argv.pop(1)
    unittest.main(verbosity=2)
