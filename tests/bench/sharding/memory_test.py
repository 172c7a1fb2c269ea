#!/usr/bin/env python3
"""Tests memory.py with files of a made-up process, and with processes that hold a known number of bytes."""
import json
import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import memory

MIB = 1 << 20
STATUS = "Name:\tx\nVmHWM:\t     900 kB\nRssAnon:\t 300 kB\nRssFile:\t 100 kB\nRssShmem:\t 400 kB\nThreads:\t1\n"
ROLLUP = "0-1 ---p 00000000 00:00 0   [rollup]\nPss_Shmem:     200 kB\n"

# Answers each line of its input, once it has done what the line says.
HOLDER = """
import mmap, sys
for line in sys.stdin:
    what = line.strip()
    if what == "take":
        held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(0, len(held), 4096):
            held[page] = 1
    elif what == "give back":
        held.close()
    elif what == "map":
        shared = mmap.mmap(int(sys.argv[1]), 0)
        shared[::4096]
    print(what, flush=True)
"""


class Holder:
    """A process that holds memory as it is told."""

    def __init__(self, *arguments, rank="0", descriptors=()):
        self._process = subprocess.Popen([sys.executable, "-c", HOLDER, *arguments], text=True, pass_fds=descriptors,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"RANK": rank})
        self.folder = pathlib.Path(f"/proc/{self._process.pid}")
        self.tell("be ready")

    def tell(self, what):
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def end(self):
        self._process.communicate()


class Memory(unittest.TestCase):
    def holder(self, *arguments, **options):
        holder = Holder(*arguments, **options)
        self.addCleanup(holder.end)
        return holder

    def assert_near(self, size, mib):
        self.assertAlmostEqual(size / MIB, mib, delta=4)  # A small Python program's own memory varies less.

    def test_files_do_not_count_and_shared_memory_counts_by_share(self):
        self.assertEqual(memory.held(memory.fields(STATUS), memory.fields(ROLLUP)), 1024 * (900 - 100 - 400 + 200))

    def test_a_peak_counts_until_it_was_taken(self):
        holder = self.holder()
        before = memory.take(holder.folder)
        holder.tell("take")
        holder.tell("give back")
        self.assert_near(memory.take(holder.folder) - before, 64)
        self.assert_near(memory.take(holder.folder) - before, 0)

    def test_ranks_divide_shared_memory(self):
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            file.write(bytes(64 * MIB))
            file.flush()
            holders = [self.holder(str(file.fileno()), descriptors=[file.fileno()]) for _ in range(2)]
            before = [memory.take(holder.folder) for holder in holders]
            for holder in holders:
                holder.tell("map")
            for holder, at_first in zip(holders, before):
                memory.take(holder.folder)  # The first one mapped alone at its peak.
                self.assert_near(memory.take(holder.folder) - at_first, 32)

    def test_an_ended_process_holds_nothing(self):
        holder = Holder()
        holder.end()
        self.assertIsNone(memory.take(holder.folder))
        self.assertIsNone(memory.rank_of(holder.folder))

    def test_ranks_are_the_children_with_a_number(self):
        holder = self.holder(rank="3")
        self.assertEqual(memory.rank_of(holder.folder), 3)
        self.assertIn(holder.folder, list(memory.children()))


class LastStep(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "metrics.jsonl"

    def test_there_is_none_without_a_file(self):
        self.assertEqual(memory.last_step(self.file), 0)

    def test_other_events_and_an_incomplete_line_do_not_count(self):
        lines = [json.dumps({"event": event, "step": step}) for event, step in (("step", 4), ("evaluation", 9), ("step", 5))]
        self.file.write_text("\n".join(lines)[:-3])
        self.assertEqual(memory.last_step(self.file), 4)

    def test_a_watch_keeps_the_peaks_from_the_first_line_to_the_last_step(self):
        holder = Holder(rank="7")
        self.addCleanup(holder.end)
        watch = memory.Watch(self.file, steps=1)
        self.assertTrue(watch.look())
        self.file.write_text('{"event": "start"}\n')
        self.assertTrue(watch.look())
        self.assertEqual(watch.peaks, {}, "a part of the peak may be older than the file")
        self.assertTrue(watch.look())
        small = watch.peaks[7]
        holder.tell("take")
        self.assertTrue(watch.look())
        large = watch.peaks[7]
        self.assertGreater(large, small + 60 * MIB)
        holder.tell("give back")
        self.assertTrue(watch.look())
        self.assertEqual(watch.peaks[7], large)
        self.file.write_text('{"event": "step", "step": 1}\n')
        holder.tell("take")
        holder.tell("take")
        self.assertFalse(watch.look())
        self.assertEqual(watch.peaks[7], large)


if __name__ == "__main__":
    unittest.main()
