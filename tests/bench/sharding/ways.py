"""The compared ways to hold a model's training state, and the bytes per parameter that each must hold."""
import dataclasses
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Size:
    """A GPT. `sequences`: per rank and step."""
    model: str
    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int
    sequences: int

    @property
    def parameters(self):
        block = 12 * self.width ** 2 + 13 * self.width
        return (self.vocabulary + self.context) * self.width + self.layers * block + 2 * self.width

    def with_few_tokens(self):
        """The same with so few tokens that activations are small beside the parameters."""
        return dataclasses.replace(self, context=8, sequences=1)

    def narrow(self):
        """The same with hardly any parameters."""
        return dataclasses.replace(self, width=4 * self.heads)

    def flags(self, ranks):
        shape = [f"--{name}={getattr(self, name)}" for name in ("layers", "heads", "width", "context", "vocabulary")]
        return shape + [f"--batch_size={self.sequences * ranks}"]


SIZES = {"10.7M": Size("char_gpt", 6, 6, 384, 64, 65, sequences=2),
         "gpt2": Size("gpt", 12, 12, 768, 64, 50257, sequences=1)}  # 124 million.


# Bytes per element; int8 and int8_b128 are one format.
BYTES = {"none": 4, "fp32": 4, "int8": 8.125 / 8, "int8_b128": 8.125 / 8}


@dataclasses.dataclass(frozen=True)
class Way:
    """Each rank holds `whole` bytes per parameter, and its part of `split` bytes, which the ranks of a node or of the
    world divide among them. With `parameters` their format replaces that of the hook in the second hop."""
    name: str
    whole: int
    split: int = 0
    within_nodes: bool = False
    flags: tuple = ()  # of narrowcast-train
    python: str = ""  # kind of training in Python
    hook: str = "none"
    parameters: str = ""
    copies: int = 1

    def bytes_per_parameter(self, layout, has_views=True):
        """AdamW's, in float32: 4 bytes each for the parameter, the gradient and two moments. Without views, the
        buckets of DistributedDataParallel hold every gradient once more."""
        bucket = 0 if has_views or self.python == "fsdp2" else 4
        return self.whole + bucket + self.split / (layout.ranks_per_node if self.within_nodes else layout.ranks)

    def sent_bytes(self, size, layout):
        """Bytes that a node sends per step, for gradients and parameters. Gloo's ring crosses each node's border once.
        With two copies, the owner of a shard sends its averages once more."""
        if self.hook == "none":
            return 2 * (layout.ranks - 1) / layout.ranks * size.parameters * BYTES[self.hook]
        second = BYTES[self.parameters or self.hook]
        per_element = (layout.nodes - 1) * (BYTES[self.hook] + second) + (self.copies - 1) * second
        return size.parameters * per_element / layout.nodes

    def can_run(self, layout):
        return not self.within_nodes or layout.ranks_per_node > 1

    def command(self, arguments, size, layout, log_every=1):
        """The command of each rank. `arguments` has `bin` and `gradient_as_bucket_view`."""
        views = ["--gradient_as_bucket_view"] if arguments.gradient_as_bucket_view else []
        if self.python:
            program = [sys.executable, "-W", "ignore", str(HERE / "python_rank.py"), f"--kind={self.python}"]
        else:
            program = [str(arguments.bin / "narrowcast-train"), f"--model={size.model}", "--device=cpu", "--threads=1",
                       "--eval_batches=0", f"--log_every={log_every}", "--check_replicas_every=0", *self.flags]
        return program + views + size.flags(layout.ranks)


def _sharded(name, whole, split, shards, hook="none", parameters="", copies=1):
    flags = [f"--shard_optimizer={shards}", f"--hook={hook}"]
    flags += [f"--parameter_format={parameters}"] if parameters else []
    flags += [f"--shard_copies={copies}"] if copies > 1 else []
    return Way(name, whole, split, shards == "node", tuple(flags), hook=hook, parameters=parameters, copies=copies)


# The hook none averages as PyTorch's DistributedDataParallel does, and fp32 in the memory of a node. The owner of a
# shard also holds its unrounded parameters, if parameters are rounded, and so does the rank with the shard's copy.
WAYS = {way.name: way for way in (
    _sharded("off", 16, 0, "off"),
    _sharded("off_fp32", 16, 0, "off", hook="fp32"),
    _sharded("off_int8", 16, 0, "off", hook="int8"),
    _sharded("node", 8, 8, "node"),
    _sharded("node_fp32", 8, 8, "node", hook="fp32"),
    _sharded("node_int8", 8, 8, "node", hook="int8"),
    _sharded("all_fp32", 8, 8, "all", hook="fp32", parameters="fp32"),
    _sharded("all_int8", 8, 12, "all", hook="int8", parameters="int8_b128"),
    _sharded("all_fp32_copies", 8, 16, "all", hook="fp32", parameters="fp32", copies=2),
    _sharded("all_int8_copies", 8, 24, "all", hook="int8", parameters="int8_b128", copies=2),
    Way("ddp", 16, python="ddp"),
    Way("zero", 8, 8, python="zero"),
    Way("fsdp2", 0, 16, python="fsdp2"))}
DEFAULTS = ["off", "off_fp32", "node", "node_fp32", "ddp", "zero", "fsdp2"]  # Without a network, int8 is fp32.
