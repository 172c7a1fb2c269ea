#!/usr/bin/env python3
"""Tests networks.py, and the command lines of the programs that use it."""
import argparse
import contextlib
import io
import pathlib
import subprocess
import sys
import unittest

import networks
from networks import Layout

HERE = pathlib.Path(__file__).resolve().parent


def chosen(*flags):
    parser = argparse.ArgumentParser()
    networks.add_flags(parser, layouts="some", rates=["1", "open"])
    arguments = parser.parse_args(flags)
    return networks.named_layouts(parser, arguments), arguments.rate


def link_text(rate, *flags):
    parser = argparse.ArgumentParser()
    networks.add_flags(parser, layouts="some", rates=["1", "open"])
    return networks.link_text(rate, parser.parse_args(flags))


class Flags(unittest.TestCase):
    def error_of(self, *flags):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            chosen(*flags)
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue().splitlines()[-1].partition("error: ")[2]

    def test_every_combination_is_measured(self):
        layouts, rates = chosen("--nodes=2,4", "--ranks_per_node=1,8", "--rate=10")
        self.assertEqual(layouts, [Layout(2, 1), Layout(2, 8), Layout(4, 1), Layout(4, 8)])
        self.assertEqual(rates, ["10"])

    def test_world_is_short_for_nodes_of_one_rank(self):
        self.assertEqual(chosen("--world=2,8"), chosen("--nodes=2,8", "--ranks_per_node=1"))
        self.assertEqual(chosen("--world=2,8"), chosen("--nodes=2,8"))

    def test_nothing_named_means_the_programs_own_choice(self):
        self.assertEqual(chosen(), (None, ["1", "open"]))

    def test_what_is_named_twice_is_measured_once(self):
        self.assertEqual(chosen("--nodes=2,2", "--rate=1,1"), ([Layout(2, 1)], ["1"]))

    def test_one_node_of_several_ranks_is_a_network_too(self):
        self.assertEqual(chosen("--nodes=1", "--ranks_per_node=8")[0], [Layout(1, 8)])

    def test_connections_are_a_number_or_auto(self):
        self.assertEqual([networks.count_or_auto("auto"), networks.count_or_auto("4")], ["auto", 4])
        for wrong in ("", "0", "4,8", "many"):
            with self.assertRaises(argparse.ArgumentTypeError):
                networks.count_or_auto(wrong)

    def test_a_delay_is_a_time(self):
        self.assertEqual(link_text("0.1"), "100 Mbit/s")
        self.assertEqual(link_text("1", "--delay_ms=2.5"), "1 Gbit/s, 2.5 ms of delay")
        for wrong in ("-1", "nan", "long", "10000"):
            self.assertEqual(self.error_of("--delay_ms=" + wrong),
                             f"argument --delay_ms: '{wrong}' is not a number from 0 to below 10000")

    def test_a_loss_is_a_share(self):
        self.assertEqual(link_text("10", "--loss_percent=0.1"), "10 Gbit/s, 0.1% lost")
        self.assertEqual(link_text("10", "--loss_percent=1", "--delay_ms=20"), "10 Gbit/s, 20 ms of delay, 1% lost")
        for wrong in ("-1", "nan", "much", "100"):
            self.assertEqual(self.error_of("--loss_percent=" + wrong),
                             f"argument --loss_percent: '{wrong}' is not a number from 0 to below 100")

    def test_world_contradicts_nodes(self):
        means = "; --world=W means --nodes=W --ranks_per_node=1"
        self.assertEqual(self.error_of("--world=2", "--nodes=2"), "--world: cannot be given with --nodes" + means)
        self.assertEqual(self.error_of("--world=2", "--ranks_per_node=2"),
                         "--world: cannot be given with --ranks_per_node" + means)

    def test_ranks_need_nodes(self):
        self.assertEqual(self.error_of("--ranks_per_node=2"), "--ranks_per_node: needs --nodes")

    def test_one_rank_alone_or_too_many_are_refused(self):
        self.assertEqual(self.error_of("--nodes=1,2"), "--nodes: 1 node of 1 rank: there must be 2 to 64 ranks in all")
        self.assertEqual(self.error_of("--world=1"), "--world: 1 node of 1 rank: there must be 2 to 64 ranks in all")
        self.assertEqual(self.error_of("--nodes=8", "--ranks_per_node=8,9"),
                         "--nodes: 8 nodes of 9 ranks: there must be 2 to 64 ranks in all")

    def test_what_is_no_count_or_rate_is_named(self):
        for value in ("x", "0", "-2", "2.5", "", "2,"):
            word = "" if value == "2," else value
            self.assertEqual(self.error_of(f"--nodes={value}"),
                             f"argument --nodes: '{word}' is not a positive whole number")
        self.assertEqual(self.error_of("--rate=1,100"), "argument --rate: '100' is not one of 0.1, 1, 10, open")


class Rates(unittest.TestCase):
    def test_as_a_shaper_and_as_a_reader_has_them(self):
        self.assertEqual([networks.tc_rate(rate) for rate in networks.RATES], ["0.1gbit", "1gbit", "10gbit", None])
        self.assertEqual([networks.rate_text(rate) for rate in networks.RATES], ["100 Mbit/s", "1 Gbit/s", "10 Gbit/s", "open"])


class Programs(unittest.TestCase):
    def refusal_of(self, program, *flags):
        ended = subprocess.run([sys.executable, HERE / program, *flags], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        return ended.stderr.splitlines()[-1]

    def test_a_training_needs_a_text(self):
        self.assertIn("--data", self.refusal_of("train", "--nodes=2"))

    def test_contradictions_end_them_before_anything_is_made(self):
        for program in (["run"], ["train", "--data=x"]):
            self.assertIn("--world: cannot be given with --nodes", self.refusal_of(*program, "--world=2", "--nodes=2"))

    def test_places_of_files_are_looked_up_first(self):
        for program, flag in (("run", "json"), ("run", "report"), ("low_communication", "json")):
            for place in ("", "/nowhere/x", str(HERE)):
                self.assertTrue(self.refusal_of(program, f"--{flag}={place}").endswith(
                    f"argument --{flag}: '{place}' cannot be written"))


if __name__ == "__main__":
    unittest.main()
