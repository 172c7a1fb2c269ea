"""Packages of models of the transformers library, trained by the programs."""
import unittest

import torch
from torch import nn

from export.programs import ProgramsTestCase

try:
    import transformers
except ImportError:
    transformers = None


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens).logits


def counting(length=16, count=64):
    """Sequences that count upwards, and their next tokens."""
    start = torch.randint(0, 20, (count, 1), generator=torch.Generator().manual_seed(0))
    numbers = (start + torch.arange(length + 1)) % 20
    return numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous()


@unittest.skipUnless(transformers, "transformers is not installed")
class Transformers(ProgramsTestCase):
    def test_gpt2(self):
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=64, n_layer=2, n_head=2, attn_pdrop=0.0, use_cache=False)
        self.assert_trains(Logits(transformers.GPT2LMHeadModel(config)), *counting())

    def test_bert(self):
        """Its forward looks for padding in the tokens, except while it is exported."""
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=20, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                                         intermediate_size=128, max_position_embeddings=16, attention_probs_dropout_prob=0.0)
        self.assert_trains(Logits(transformers.BertForMaskedLM(config)), *counting())


if __name__ == "__main__":
    unittest.main()
