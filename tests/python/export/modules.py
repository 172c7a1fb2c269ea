"""Modules that the tests export."""
import torch
from torch import nn
from torch.nn import functional


class Small(nn.Module):
    """Every kind of parameter and buffer: tied, frozen, unused; changed in place, assigned, unchanged, not persistent."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.middle = nn.Linear(12, 12)
        self.again = nn.Linear(12, 12)
        self.again.weight = self.middle.weight
        self.last = nn.Linear(12, 4)
        self.scale = nn.Parameter(torch.tensor(1.5), requires_grad=False)
        self.spare = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(12))
        self.register_buffer("mask", torch.arange(12) % 5 != 0, persistent=False)
        self.constant = torch.linspace(0.5, 1.5, 12)  # Neither a parameter nor a buffer.

    def forward(self, inputs):
        hidden = functional.dropout(torch.relu(self.norm(self.first(inputs.float()))), 0.25, self.training)
        if self.training:
            self.steps += 1
            self.average = 0.9 * self.average + 0.1 * hidden.detach().mean(0)
        hidden = hidden * self.mask[:12] * self.constant - self.average
        return self.last(torch.tanh(self.again(torch.tanh(self.middle(hidden)))) * self.scale)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attention_output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, tokens, width = x.shape
        shape = (batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = self.query_key_value(self.attention_norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_output(attention.transpose(1, 2).reshape(x.shape))
        return x + functional.dropout(self.mlp(self.mlp_norm(x)), 0.1, self.training)


class Gpt(nn.Module):
    """Attention, dropout, and embeddings that the logits share."""

    def __init__(self, layers=2, heads=2, width=32, context=16, vocabulary=40):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding.weight[:tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Memory(nn.Module):
    """An LSTM of two layers that returns its loss."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.last = nn.Embedding(20, 8), nn.LSTM(8, 12, num_layers=2, batch_first=True), nn.Linear(12, 20)

    def forward(self, tokens, targets):
        logits = self.last(self.lstm(self.embedding(tokens))[0])
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Images(nn.Module):
    """Convolutions with batch norms, on bytes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                    nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                                    nn.Flatten(), nn.Linear(16, 1))

    def forward(self, images):
        return self.layers(images.unsqueeze(1).float() / 255)
