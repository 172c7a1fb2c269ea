"""narrowcast.DiLoCo with outer_quorum: outer steps that do not wait for ranks that are late."""
import unittest

import torch
import torch.distributed as dist

import narrowcast
from support.gradients import Network, RankTestCase, gathered, loss_of
from support.ranks import run_on_ranks

ROUNDS = 6
LATE = 2


def flat(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def take_step(model, outer):
    outer.zero_grad()
    loss_of(model, outer.steps).backward()
    outer.step()


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def a_late_rank(self):
        """Rank 2 takes no step until the others have ended four rounds. Then it has their outer parameters, and takes part."""
        model = Network()
        outer = narrowcast.DiLoCo(torch.optim.SGD(model.parameters(), lr=.05), sync_every=2, outer_quorum=2, outer_format="int8_b128",
                                  outer_error_feedback=True, local_group="none")
        store = dist.distributed_c10d._get_default_store()
        own = 0
        if dist.get_rank() == LATE:
            store.wait(["four rounds of rank 0", "four rounds of rank 1"])
        while outer.steps < 2 * ROUNDS:
            take_step(model, outer)
            own += 1
            if outer.exchanges == 4:
                store.set(f"four rounds of rank {dist.get_rank()}", "")
        outer.finish()
        self.assertGreaterEqual(outer.exchanges, ROUNDS)
        self.assertEqual(outer.lost_exchanges, 0)
        self.assertEqual(outer.steps, 2 * ROUNDS)
        of_ranks = gathered(flat(model))
        self.assert_same(of_ranks, of_ranks[:1].expand_as(of_ranks).contiguous())
        if dist.get_rank() == LATE:
            self.assertLess(own, 2 * ROUNDS)

    def refuses(self):
        for wrong, text in (({"outer_quorum": 4}, "outer_quorum: must be at most the number of groups \\(3\\), but is 4"),
                            ({"outer_quorum": 2}, "outer_quorum: must be at most the number of groups \\(1\\), but is 2"),  # one node
                            ({"outer_grace_seconds": 1.}, "outer_grace_seconds: 1 has no effect without outer_quorum"),
                            ({"outer_quorum": 2, "levels": "one"}, "levels: has no effect with outer_quorum")):
            with self.assertRaisesRegex(ValueError, text):
                narrowcast.DiLoCo(torch.optim.SGD(Network().parameters(), lr=.05), sync_every=2, **wrong)


class DiLoCoWithQuorum(unittest.TestCase):
    def test_three_ranks(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("refuses", "a_late_rank")), [0] * 3)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(DiLoCoWithQuorum)


if __name__ == "__main__":
    unittest.main()
