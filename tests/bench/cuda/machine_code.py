"""Machine code of kernels, from a listing of nvdisasm."""
import dataclasses
import re


@dataclasses.dataclass
class Instruction:
    """`guard`: the predicate under which it is executed, such as !P0. `name`: with all its parts, such as
    IMAD.WIDE.U32."""
    address: int
    guard: str
    name: str
    operands: list

    def __str__(self):
        return f"{self.address:#06x} {self.guard and '@' + self.guard + ' '}{self.name} {', '.join(self.operands)}"


@dataclasses.dataclass
class Kernel:
    """`instructions` by place; `places` of labels and addresses; `tables`: the bytes of constant bank 2, which has the
    jump tables. Arguments are the `argument_bytes` bytes from `argument_offset` on in bank 0."""
    name: str
    instructions: list = dataclasses.field(default_factory=list)
    places: dict = dataclasses.field(default_factory=dict)
    tables: bytes = b""
    argument_offset: int = 0
    argument_bytes: int = 0


SECTION = re.compile(r"\s*\.section\s+\.(text|nv\.constant2|nv\.info)\.([^,\s]+),")
OTHER_SECTION = re.compile(r"\s*\.section\s")
LABEL = re.compile(r"^(\.L_x_\d+):")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
BYTES = re.compile(r"\s*(?:/\*[0-9a-f]+\*/)?\s*\.byte\s+(.*)")
# The attribute that gives the position of arguments; its words follow three lines below.
ARGUMENTS = "EIATTR_PARAM_CBANK"
SHORT = re.compile(r"\.short\s+(0x[0-9a-f]+)")


def operands_of(text):
    """Removes comments, quotes around labels, and marks of registers that are reused."""
    text = re.sub(r"\(\*.*?\*\)", "", text)
    text = re.sub(r"`\((.*?)\)", r"\1", text).replace(".reuse", "")
    return [word.strip() for word in text.split(",")] if text.strip() else []


class _Reader:
    """Reads a listing line by line."""

    def __init__(self):
        self.kernels = {}
        self.kind, self.kernel = None, None
        self.argument_words = None  # The words read since ARGUMENTS.

    def read(self, line):
        section = SECTION.match(line)
        if section:
            self.kind = section[1]
            self.kernel = self.kernels.setdefault(section[2], Kernel(section[2]))
        elif OTHER_SECTION.match(line):
            self.kind, self.kernel = None, None
        elif self.kind == "text":
            self.read_code(line)
        elif self.kind == "nv.constant2":
            found = BYTES.match(line)
            if found:
                self.kernel.tables += bytes(int(byte, 16) for byte in found[1].split(","))
        elif self.kind == "nv.info":
            self.read_arguments(line)

    def read_code(self, line):
        kernel = self.kernel
        label = LABEL.match(line)
        if label:
            kernel.places[label[1]] = len(kernel.instructions)
        found = INSTRUCTION.match(line)
        if found:
            address = int(found[1], 16)
            kernel.places[address] = len(kernel.instructions)
            kernel.instructions.append(Instruction(address, found[2] or "", found[3], operands_of(found[4])))

    def read_arguments(self, line):
        if ARGUMENTS in line:
            self.argument_words = []
        elif self.argument_words is not None:
            self.argument_words += [int(word, 16) for word in SHORT.findall(line)]
            if len(self.argument_words) >= 2:
                self.kernel.argument_offset, self.kernel.argument_bytes = self.argument_words[:2]
                self.argument_words = None


def read_kernels(text):
    """The kernels of a listing, by their mangled names."""
    reader = _Reader()
    for line in text.splitlines():
        reader.read(line)
    return {name: kernel for name, kernel in reader.kernels.items() if kernel.instructions}
