"""The modules that `run` compares: name -> function that makes (module, inputs, targets) for a batch of `size` samples."""
import torch
from torch import nn


class CharGpt(nn.Module):
    """Shapes and initial weights as the bundled char_gpt."""

    class Block(nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.heads = heads
            self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query_key_value, self.attention_output = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp_input, self.mlp_output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, tokens, width = x.shape
            parts = self.query_key_value(self.attention_norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
            parts = parts.permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.attention_output(mixed.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.mlp_output(nn.functional.gelu(self.mlp_input(self.mlp_norm(x)), approximate="tanh"))

    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int = 65):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([self.Block(width, heads) for _ in range(layers)])
        self.final_norm = nn.LayerNorm(width)
        for each in self.parameters():
            if each.dim() > 1:
                nn.init.normal_(each, std=0.02)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.final_norm(x), self.token_embedding.weight)


class Logits(nn.Module):
    """A model of the transformers library, whose results are objects."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens).logits


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.next = nn.Embedding(65, 32), nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 65)

    def forward(self, tokens):
        return self.next(self.lstm(self.embedding(tokens))[0])


def tokens(module, size, context):
    text = torch.randint(0, 65, (size, context + 1))
    return module, text[:, :-1].contiguous(), text[:, 1:].contiguous()


def images(module, size, *shape):
    return module, torch.randn(size, *shape), torch.randint(0, 10, (size,))


def perceptron(size):
    layers = nn.Sequential(nn.Linear(784, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    return images(layers, size, 784)


def resnet18(size):
    import torchvision

    return images(torchvision.models.resnet18(num_classes=10), size, 3, 64, 64)


def vision_transformer(size):
    import torchvision

    return images(torchvision.models.VisionTransformer(32, 8, 4, 4, 128, 512, num_classes=10), size, 3, 32, 32)


def gpt2(size):
    import transformers

    config = transformers.GPT2Config(vocab_size=65, n_positions=64, n_embd=128, n_layer=4, n_head=4, attn_pdrop=0.0, use_cache=False)
    return tokens(Logits(transformers.GPT2LMHeadModel(config)), size, 64)


def bert(size):
    import transformers

    config = transformers.BertConfig(vocab_size=65, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                                     intermediate_size=512, max_position_embeddings=64, attention_probs_dropout_prob=0.0)
    return tokens(Logits(transformers.BertForMaskedLM(config)), size, 64)


MODULES = {
    "mlp": (perceptron, 32),
    "gpt_110k": (lambda size: tokens(CharGpt(2, 4, 64, 64), size, 64), 8),
    "gpt_10.7m": (lambda size: tokens(CharGpt(6, 6, 384, 64), size, 64), 4),
    "lstm": (lambda size: tokens(Language(), size, 16), 8),
    "resnet18": (resnet18, 4),
    "vit": (vision_transformer, 8),
    "gpt2": (gpt2, 4),
    "bert": (bert, 4),
}
