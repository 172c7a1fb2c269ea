"""narrowcast.DiLoCo with sync_seconds: rounds that end by time."""
import copy
import time
import unittest

import torch
import torch.distributed as dist

import narrowcast
from support.gradients import Network, RankTestCase, gathered, loss_of
from support.ranks import run_on_ranks

STEPS = 4


def flat(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=.05)


def take_steps(model, optimizer, begin, end):
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def rounds_of_no_time(self):
        """They have one step each, and the bits of sync_every=1."""
        counted = Network()
        timed = copy.deepcopy(counted)
        every_step = narrowcast.DiLoCo(sgd(counted), sync_every=1)
        at_once = narrowcast.DiLoCo(sgd(timed), sync_seconds=1e-9, local_group="none")
        take_steps(counted, every_step, 0, STEPS)
        take_steps(timed, at_once, 0, STEPS)
        self.assert_same(flat(timed), flat(counted))
        self.assertEqual((at_once.steps, at_once.exchanges), (STEPS, STEPS))

    def a_slow_rank(self):
        """The batches follow from the steps, so that rank 1, which is slower, may leave some out."""
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_seconds=.05, outer_format="int8_b128", levels="one", local_group="none")
        own = 0
        while outer.steps < 100:
            take_steps(model, outer, outer.steps, outer.steps + 1)
            time.sleep(.02 * dist.get_rank())
            own += 1
            if outer.steps_are_common:
                outer.restart_clock()
        outer.end_round()
        self.assertTrue(outer.steps_are_common)
        self.assertEqual(outer.steps, 100)
        outer.finish()
        of_ranks = gathered(flat(model))
        self.assert_same(of_ranks, of_ranks[:1].expand_as(of_ranks).contiguous())
        self.assertLess(gathered(torch.tensor([float(own)]))[1].item(), 100, "rank 1 has jumped")
        saved = outer.state_dict()
        again = narrowcast.DiLoCo(sgd(Network()), sync_seconds=.05, outer_format="int8_b128", levels="one", local_group="none")
        again.load_state_dict(saved)
        self.assertEqual(again.steps, 100)

    def a_group(self):
        self.takes_equal_steps(local_group=2)

    def a_node(self):
        """The default."""
        self.takes_equal_steps()

    def takes_equal_steps(self, **options):
        """Rank 1's own time would end its rounds earlier. All ranks of a group take the steps that rank 0's clock allows."""
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_seconds=.05, **options)
        own = 0
        while outer.steps < 20:
            take_steps(model, outer, outer.steps, outer.steps + 1)
            time.sleep(.01 * dist.get_rank())
            own += 1
            self.assertEqual(outer.steps, own, "no rank has jumped")
        outer.finish()
        self.assertGreaterEqual(outer.exchanges, 1)


class DiLoCoByTime(unittest.TestCase):
    def test_two_ranks(self):
        self.assertEqual(run_on_ranks(2, OnEachRank("rounds_of_no_time", "a_slow_rank", "a_group", "a_node")), [0] * 2)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(DiLoCoByTime)


if __name__ == "__main__":
    unittest.main()
