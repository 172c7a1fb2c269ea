"""States of pieces of parameters."""
import unittest

import torch

from narrowcast._shard_states import Piece, cut, join, take_part


class ShardStates(unittest.TestCase):
    """Of a parameter of 65 elements, whose last piece has one element: it is no number of the whole parameter, as the step is."""

    parameter = torch.zeros(65)
    pieces = [Piece(parameter, 0, 0, 64), Piece(parameter, 0, 64, 1)]
    whole = {"step": torch.tensor(3.), "average": torch.arange(65.), "name": "of the state"}

    def check(self, state, expected):
        self.assertEqual(str(state), str(expected))

    def test_pieces_are_cut_and_joined(self):
        joined = {}
        for piece in self.pieces:
            state = cut(self.whole, piece)
            self.assertEqual(state["average"].shape, (piece.numel,))
            join(joined, state, piece)
        self.check(joined, self.whole)

    def test_pieces_take_parts_of_others(self):
        other = [Piece(self.parameter, 0, 0, 10), Piece(self.parameter, 0, 10, 55)]
        for olds, news in (self.pieces, other), (other, self.pieces), (self.pieces, [Piece(self.parameter, 0, 0, 65)]):
            for new in news:
                state = {}
                for old in olds:
                    take_part(state, new, cut(self.whole, old), old)
                self.check({name: state[name] for name in self.whole}, cut(self.whole, new))

    def test_strides_are_the_parameters(self):
        matrix = torch.zeros(5, 4).t()
        values = torch.arange(20.).view(4, 5)
        state = {}
        for old in Piece(matrix, 0, 0, 7), Piece(matrix, 0, 7, 13):
            take_part(state, Piece(matrix, 0, 0, 20), cut({"average": values}, old), old)
        self.check(state["average"], values)
        self.assertEqual(state["average"].stride(), matrix.stride())


if __name__ == "__main__":
    unittest.main()
