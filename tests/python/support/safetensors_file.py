"""Files in the safetensors format, in a few lines, without the package."""
import ctypes
import json
import math
import struct

import torch

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def write(path, tensors, metadata=None):
    header, data = {"__metadata__": metadata or {}}, b""
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        content = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """Returns the tensors and the metadata."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8:8 + length]), bytearray(content[8 + length:])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert end - begin == math.prod(entry["shape"]) * _DTYPES[entry["dtype"]].itemsize, name
        flat = torch.frombuffer(data, dtype=torch.uint8, offset=begin, count=end - begin).clone()
        tensors[name] = flat.view(_DTYPES[entry["dtype"]]).view(entry["shape"])
    return tensors, metadata
