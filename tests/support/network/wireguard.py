"""A WireGuard tunnel between the hosts of a Network: the kernel's if it has one, else wireguard-go, in user space."""
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

PORT = 51820
SECONDS_TO_START = 20


def missing_requirement():
    """What this machine lacks, as a sentence; empty if nothing is missing."""
    if shutil.which("wg") is None:
        return "needs the command 'wg' (Debian: apt-get install wireguard-tools)"
    if _kernel_has_it():
        return ""
    if shutil.which("wireguard-go") is None:
        return "this kernel has no WireGuard, and there is no wireguard-go (Debian: apt-get install wireguard-go)"
    if not pathlib.Path("/dev/net/tun").exists():
        return "this kernel has no WireGuard, and wireguard-go needs /dev/net/tun"
    return ""


@functools.cache
def _kernel_has_it():
    """Tries it in a namespace that ends with the process."""
    command = ["unshare", "--net", "ip", "link", "add", "wg-try", "type", "wireguard"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


class Tunnel:
    """Connects all `hosts` hosts of a network; exists for the duration of the context."""

    def __init__(self, network, hosts):
        self._network = network
        self._hosts = range(hosts)
        self._programs = []

    def interface(self, host):
        """The name differs between hosts and processes: wireguard-go's sockets are files, which namespaces share."""
        return f"nc{os.getpid()}w{host}"

    def address(self, host):
        return f"10.88.0.{host + 1}"

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, str(host)) for host in self._hosts]
            for host, file in zip(self._hosts, files):
                file.write_text(self._run(host, ["wg", "genkey"]))
                self._make_interface(host)
                self._run(host, ["wg", "set", self.interface(host), "listen-port", str(PORT), "private-key", str(file)])
        keys = [self._run(host, ["wg", "show", self.interface(host), "public-key"]).strip() for host in self._hosts]
        for host in self._hosts:
            for peer in self._hosts:
                if peer != host:
                    self._run(host, ["wg", "set", self.interface(host), "peer", keys[peer], "allowed-ips",
                                     self.address(peer) + "/32", "endpoint", f"{self._network.address(peer)}:{PORT}"])
            self._run(host, ["ip", "address", "add", self.address(host) + "/24", "dev", self.interface(host)])
            self._run(host, ["ip", "link", "set", "dev", self.interface(host), "up"])

    def __exit__(self, *_):
        for program in self._programs:
            program.terminate()  # It removes its socket.
        for program in self._programs:
            program.wait()

    def _run(self, host, command):
        return subprocess.run(self._network.command(host, command), check=True, capture_output=True, text=True).stdout

    def _make_interface(self, host):
        name = self.interface(host)
        if _kernel_has_it():
            self._run(host, ["ip", "link", "add", name, "type", "wireguard"])
            return
        program = ["setpriv", "--pdeathsig", "KILL", "wireguard-go", "--foreground", name]
        with tempfile.TemporaryFile("w+") as errors:
            self._programs.append(subprocess.Popen(self._network.command(host, program), stdin=subprocess.DEVNULL,
                                                   stdout=subprocess.DEVNULL, stderr=errors))
            deadline = time.monotonic() + SECONDS_TO_START
            show = self._network.command(host, ["wg", "show", name, "listen-port"])
            while subprocess.run(show, capture_output=True, check=False).returncode != 0:
                ended = self._programs[-1].poll()
                if time.monotonic() > deadline or ended is not None:
                    errors.seek(0)
                    raise RuntimeError(f"wireguard-go made no interface {name} (exit code {ended}):\n{errors.read()}")
                time.sleep(0.05)
