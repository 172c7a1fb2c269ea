"""Every operator with calls to try: functions that TorchScript compiles, and all their arguments."""
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

import torch
from torch import Tensor

from support.exact import ops

GROUP = "0"  # The name under which PyTorch registers the default group. The world of these tests is one process.


@dataclass
class Case:
    """The calls to try of one operator."""
    call: Callable
    sized: Callable  # sized(n) -> arguments whose first dimension is n; calls that differ only in n share a graph.
    others: Callable = tuple  # others() -> more tuples of arguments: strided, empty, other dtypes, other options.
    one_graph: bool = True  # torch.compile breaks its graph at an operator that returns a plain number.
    differentiable: Tuple[int, ...] = ()  # Positions of the arguments that have a gradient.


def choose_qparams_per_tensor(x: Tensor) -> Tuple[Tensor, Tensor]:
    return torch.ops.narrowcast.choose_qparams_per_tensor(x)


def choose_qparams_per_channel(x: Tensor) -> Tuple[Tensor, Tensor]:
    return torch.ops.narrowcast.choose_qparams_per_channel(x)


def quantize_per_tensor(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.ops.narrowcast.quantize_per_tensor(x, scale, zero_point)


def dequantize_per_tensor(q: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.ops.narrowcast.dequantize_per_tensor(q, scale, zero_point)


def quantize_per_channel(x: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    return torch.ops.narrowcast.quantize_per_channel(x, scales, zero_points)


def dequantize_per_channel(q: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    return torch.ops.narrowcast.dequantize_per_channel(q, scales, zero_points)


def quantize_tensor(x: Tensor, qtype: str) -> Tensor:
    return torch.ops.narrowcast.quantize_tensor(x, qtype)


def quantize_tensor_list(xs: List[Tensor], qtype: str) -> List[Tensor]:
    return torch.ops.narrowcast.quantize_tensor_list(xs, qtype)


def dequantize_tensor(q: Tensor, qtype: str, quant_loss: Optional[float]) -> Tensor:
    return torch.ops.narrowcast.dequantize_tensor(q, qtype, quant_loss)


def dequantize_tensor_list(qs: List[Tensor], qtype: str, quant_loss: Optional[float]) -> List[Tensor]:
    return torch.ops.narrowcast.dequantize_tensor_list(qs, qtype, quant_loss)


def quantized_all_reduce_(x: Tensor, format: str, group_name: str, levels: str) -> None:
    torch.ops.narrowcast.quantized_all_reduce_(x, format, group_name, levels)


def quantized_all_reduce(x: Tensor, format: str, group_name: str, levels: str) -> Tensor:
    return torch.ops.narrowcast.quantized_all_reduce(x, format, group_name, levels)


def quantized_reduce_scatter_(shard: Tensor, input: Tensor, format: str, op: str, group_name: str) -> None:
    torch.ops.narrowcast.quantized_reduce_scatter_(shard, input, format, op, group_name)


def auto_quantize_all_gather(outputs: List[Tensor], input: Tensor, qtype: str, group_name: str,
                             quant_loss: Optional[float]) -> None:
    torch.ops.narrowcast.auto_quantize_all_gather(outputs, input, qtype, group_name, quant_loss)


def auto_quantize_all_to_all(outputs: List[Tensor], inputs: List[Tensor], qtype: str, group_name: str,
                             quant_loss: Optional[float]) -> None:
    torch.ops.narrowcast.auto_quantize_all_to_all(outputs, inputs, qtype, group_name, quant_loss)


def auto_quantize_all_to_all_single(output: Tensor, input: Tensor, qtype: str, group_name: str,
                                    output_split_sizes: Optional[List[int]],
                                    input_split_sizes: Optional[List[int]],
                                    quant_loss: Optional[float]) -> None:
    torch.ops.narrowcast.auto_quantize_all_to_all_single(output, input, qtype, group_name, output_split_sizes,
                                                         input_split_sizes, quant_loss)


def dynamically_quantize_per_channel(x: Tensor, quant_min: int, quant_max: int,
                                     target_dtype: torch.dtype) -> Tuple[Tensor, Tensor, Tensor]:
    return torch.ops.narrowcast.dynamically_quantize_per_channel(x, quant_min, quant_max, target_dtype)


def weight_only_int8_linear(input: Tensor, weight: Tensor, scales: Tensor, bias: Optional[Tensor]) -> Tensor:
    return torch.ops.narrowcast.weight_only_int8_linear(input, weight, scales, bias)


def encoded_size(numel: int, format: str) -> int:
    return torch.ops.narrowcast.encoded_size(numel, format)


def encode(x: Tensor, format: str, seed: Optional[int], step: int, offset: int) -> Tensor:
    return torch.ops.narrowcast.encode(x, format, seed=seed, step=step, offset=offset)


def decode(bytes: Tensor, format: str, numel: int) -> Tensor:
    return torch.ops.narrowcast.decode(bytes, format, numel)


def wire_formats():
    """The names of all formats, as listed in the library's error for an unknown one."""
    try:
        torch.ops.narrowcast.encoded_size(0, "")
    except ValueError as error:
        return tuple(str(error).splitlines()[0].partition("known: ")[2].split(", "))
    raise AssertionError("an empty name is a format")


def _inputs():
    """Tensors of at least one dimension: strided, other dtypes, more dimensions, empty."""
    return [torch.randn(6, 4).t(), torch.randn(5, 9)[::2, 1:], torch.randn(4, 3).bfloat16(), torch.randn(4, 3).half(),
            torch.randn(4, 3).double(), torch.randn(2, 3, 2, 2), torch.empty(0, 3)]


def _inputs_and_formats():
    inputs = _inputs()
    return [(inputs[i % len(inputs)], name) for i, name in enumerate(wire_formats())]


def _codes():
    integers = torch.arange(24, dtype=torch.uint8).view(4, 6)
    return [integers.t(), integers[:, 1::2], integers.view(2, 2, 3, 2), integers[:0]]


def _with_qparams(choose, x):
    return (x, *choose(x))


def _codes_with_qparams(codes, channels):
    return (codes, torch.rand(channels), torch.arange(channels, dtype=torch.int32))


def _linear(rows, bias=None, dtype=torch.float32):
    return (torch.randn(rows, 8).to(dtype), torch.randint(-128, 128, (5, 8), dtype=torch.int8), torch.rand(5), bias)


def _linear_others():
    weight = torch.randint(-128, 128, (8, 5), dtype=torch.int8).t()
    return [_linear(3, torch.randn(5)), _linear(40, torch.randn(5).double(), torch.bfloat16),
            _linear(3, dtype=torch.half), _linear(7, torch.randn(5), torch.double), (torch.randn(8), weight, torch.rand(10)[::2], None),
            (torch.randn(3, 8, 2).transpose(1, 2), weight, torch.rand(5), torch.randn(5)),
            (torch.empty(0, 8), weight, torch.rand(5), None)]


CASES = {
    "choose_qparams_per_tensor": Case(
        choose_qparams_per_tensor, lambda n: (torch.randn(n, 3),), lambda: [(x,) for x in _inputs()]),
    "choose_qparams_per_channel": Case(
        choose_qparams_per_channel, lambda n: (torch.randn(n, 3),), lambda: [(x,) for x in _inputs()]),
    "quantize_per_tensor": Case(
        quantize_per_tensor, lambda n: _with_qparams(ops.choose_qparams_per_tensor, torch.randn(n, 3)),
        lambda: [_with_qparams(ops.choose_qparams_per_tensor, x) for x in _inputs()]),
    "dequantize_per_tensor": Case(
        dequantize_per_tensor, lambda n: _codes_with_qparams(torch.randint(0, 256, (n, 3), dtype=torch.uint8), 1),
        lambda: [_codes_with_qparams(q, 1) for q in _codes()]),
    "quantize_per_channel": Case(
        quantize_per_channel, lambda n: _with_qparams(ops.choose_qparams_per_channel, torch.randn(n, 3)),
        lambda: [_with_qparams(ops.choose_qparams_per_channel, x) for x in _inputs()]),
    "dequantize_per_channel": Case(
        dequantize_per_channel, lambda n: _codes_with_qparams(torch.randint(0, 256, (n, 3), dtype=torch.uint8), n),
        lambda: [_codes_with_qparams(q, len(q)) for q in _codes()]),
    "quantize_tensor": Case(
        quantize_tensor, lambda n: (torch.randn(n, 3), "fp16"),
        lambda: [(x, qtype) for x in _inputs() for qtype in ("fp16", "bfp16")]),
    "quantize_tensor_list": Case(
        quantize_tensor_list, lambda n: ([torch.randn(n, 3), torch.randn(2, n)], "bfp16"),
        lambda: [(_inputs(), "fp16"), ([], "bfp16")]),
    "dequantize_tensor": Case(
        dequantize_tensor, lambda n: (torch.randn(n, 3).half(), "fp16", None),
        lambda: [(x.half(), qtype, loss) for x in _inputs() for qtype, loss in (("fp16", 1.1), ("bfp16", None))]),
    "dequantize_tensor_list": Case(
        dequantize_tensor_list, lambda n: ([torch.randn(n, 3).half(), torch.randn(2, n).half()], "bfp16", None),
        lambda: [([x.half() for x in _inputs()], "fp16", 1.1), ([], "bfp16", None)]),
    "auto_quantize_all_gather": Case(
        auto_quantize_all_gather, lambda n: ([torch.zeros(n, 3)], torch.randn(n, 3), "fp16", GROUP, None),
        lambda: [([torch.zeros_like(x)], x, "bfp16", GROUP, 1.1) for x in _inputs()]),
    "auto_quantize_all_to_all": Case(
        auto_quantize_all_to_all, lambda n: ([torch.zeros(n, 3)], [torch.randn(n, 3)], "fp16", GROUP, None),
        lambda: [([torch.zeros_like(x)], [x], "bfp16", GROUP, 1.1) for x in _inputs()]),
    "auto_quantize_all_to_all_single": Case(
        auto_quantize_all_to_all_single,
        lambda n: (torch.zeros(n, 3), torch.randn(n, 3), "fp16", GROUP, None, None, None),
        lambda: [(torch.zeros_like(x), x, "bfp16", GROUP, [len(x)], [len(x)], 1.1) for x in _inputs()]),
    "encoded_size": Case(
        encoded_size, lambda n: (n, "int6_b32"), lambda: [(n, name) for n in (0, 129) for name in wire_formats()],
        one_graph=False),
    "encode": Case(
        encode, lambda n: (torch.randn(n, 3), "int8_b32", None, 0, 0),
        lambda: [(x, name, seed, 5, 64) for x, name in _inputs_and_formats() for seed in (None, 7)]),
    "decode": Case(
        decode, lambda n: (ops.encode(torch.randn(n, 3), "int4_b32"), "int4_b32", 3 * n),
        lambda: [(ops.encode(x, name), name, x.numel()) for x, name in _inputs_and_formats()]),
    "quantized_all_reduce_": Case(
        quantized_all_reduce_, lambda n: (torch.randn(n, 3), "int8_b128", GROUP, "auto"),
        lambda: [(x, name, GROUP, levels) for x, name in _inputs_and_formats() for levels in ("auto", "one")]),
    "quantized_all_reduce": Case(
        quantized_all_reduce, lambda n: (torch.randn(n, 3), "int4_b32", GROUP, "auto"),
        lambda: [(x, name, GROUP, levels) for x, name in _inputs_and_formats() for levels in ("auto", "one")]),
    "quantized_reduce_scatter_": Case(
        quantized_reduce_scatter_, lambda n: (torch.randn(n, 3), torch.randn(n, 3), "int8_b128", "mean", GROUP),
        lambda: [(torch.zeros(x.shape), x, name, "sum", GROUP) for x, name in _inputs_and_formats()]),
    "dynamically_quantize_per_channel": Case(
        dynamically_quantize_per_channel, lambda n: (torch.randn(n, 6), -128, 127, torch.int8),
        lambda: [(torch.randn(6, 4).t(), 0, 255, torch.uint8), (torch.randn(4, 6), -300, 299, torch.int16),
                 (torch.randn(4, 6).bfloat16(), -127, 127, torch.int8), (torch.randn(4, 6).half(), 0, 9, torch.uint8),
                 (torch.randn(4, 6).double(), -300, 299, torch.int16), (torch.empty(0, 6), -128, 127, torch.int8)]),
    "weight_only_int8_linear": Case(weight_only_int8_linear, _linear, _linear_others, differentiable=(0, 3)),
}
