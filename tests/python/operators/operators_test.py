"""Every operator of the library under PyTorch's own checks, torch.compile, TorchScript and autograd."""
import io
import unittest

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from support.exact import ExactTestCase, ops, registered_operators
from support.operator_cases import CASES

SIZES = (7, 9, 12)  # Different from all other dimensions of the cases: the compiler would identify equal ones.


def setUpModule():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def tearDownModule():
    dist.destroy_process_group()


def copies(arguments):
    """Copies each tensor to new memory, with the same strides."""
    def copy(x):
        if not isinstance(x, torch.Tensor):
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x).requires_grad_(x.requires_grad)
    return pytree.tree_map(copy, arguments)


def run(function, arguments):
    """The result, and the arguments afterwards: some operators write to them."""
    arguments = copies(arguments)
    result = function(*arguments)
    return [result, *pytree.tree_leaves(arguments)]


def needing_gradients(arguments, positions=None):
    """The arguments; the floating-point ones (at those positions) require a gradient."""
    def require(x):
        floats = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.detach().clone().requires_grad_() if floats else x
    return tuple(pytree.tree_map(require, argument) if positions is None or i in positions else argument
                 for i, argument in enumerate(arguments))


def keyword_arguments(operator, arguments):
    """The arguments as (args, kwargs) of a call of `operator`, which may have keyword-only arguments."""
    parameters = operator._schema.arguments
    positional = [x for parameter, x in zip(parameters, arguments) if not parameter.kwarg_only]
    keywords = {parameter.name: x for parameter, x in zip(parameters, arguments) if parameter.kwarg_only}
    return tuple(positional), keywords


class CountingBackend:
    """torch.compile's backend aot_eager, which counts its graphs."""

    def __init__(self):
        self.graphs = 0
        self._compile = torch._dynamo.lookup_backend("aot_eager")

    def __call__(self, graph, inputs):
        self.graphs += 1
        return self._compile(graph, inputs)


class Library(unittest.TestCase):
    def test_every_operator_has_a_case(self):
        self.assertEqual(set(CASES), registered_operators())

    # The library is linked with another copy of LibTorch than Python's. If both were loaded, operators and process
    # groups registered in one would be unknown in the other.
    def test_shares_the_libtorch_of_python(self):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            files = {line.split()[-1] for line in maps if "libtorch_cpu.so" in line or "libc10.so" in line}
        self.assertEqual(len(files), 2, files)
        for file in files:
            self.assertTrue(file.startswith(torch.__path__[0] + "/lib/"), file)


class Operators(ExactTestCase):
    def setUp(self):
        torch.manual_seed(3)

    def for_each_case(self, check):
        for name, case in CASES.items():
            with self.subTest(operator=name):
                check(name, case)

    def test_pass_opcheck(self):
        def check(name, case):
            operator = getattr(ops, name).default
            for i, arguments in enumerate([case.sized(SIZES[0]), *case.others()]):
                with self.subTest(sample=i):
                    torch.library.opcheck(operator, *keyword_arguments(operator, arguments))
                    if case.differentiable:
                        torch.library.opcheck(operator, needing_gradients(arguments, case.differentiable))
        self.for_each_case(check)

    def test_compile_to_the_same_bits(self):
        def check(_, case):
            for arguments in case.others():
                torch._dynamo.reset()
                compiled = torch.compile(case.call, fullgraph=case.one_graph, backend="aot_eager")
                self.assert_same(run(compiled, arguments), run(case.call, arguments))
        self.for_each_case(check)

    def test_compile_once_for_all_sizes(self):
        def check(_, case):
            torch._dynamo.reset()
            backend = CountingBackend()
            compiled = torch.compile(case.call, fullgraph=True, backend=backend, dynamic=True)
            for size in SIZES:
                arguments = case.sized(size)
                self.assert_same(run(compiled, arguments), run(case.call, arguments))
            self.assertEqual(backend.graphs, 1)
        self.for_each_case(check)

    def test_run_in_a_scripted_function_saved_and_loaded(self):
        def check(name, case):
            scripted = torch.jit.script(case.call)
            self.assertIn(f"narrowcast::{name}", str(scripted.graph))
            file = io.BytesIO()
            torch.jit.save(scripted, file)
            file.seek(0)
            loaded = torch.jit.load(file)
            for arguments in [case.sized(SIZES[0]), *case.others()]:
                expected = run(case.call, arguments)
                for function in (scripted, loaded, loaded):  # The executor changes the code in the second call.
                    self.assert_same(run(function, arguments), expected)
        self.for_each_case(check)

    def test_run_in_a_scripted_module_saved_and_loaded(self):
        class Compress(torch.nn.Module):
            def forward(self, x: torch.Tensor, qtype: str) -> torch.Tensor:
                q = torch.ops.narrowcast.quantize_tensor(x, qtype)
                return torch.ops.narrowcast.dequantize_tensor(q, qtype, 1.5)

        file = io.BytesIO()
        torch.jit.save(torch.jit.script(Compress()), file)
        file.seek(0)
        x = torch.randn(7, 3)
        self.assert_same(torch.jit.load(file)(x, "bfp16"), Compress()(x, "bfp16"))

    def test_raise_typed_errors(self):
        x = torch.ones(2)
        with self.assertRaisesRegex(TypeError, "^x must be float32, float64, bfloat16 or float16, not Int$"):
            ops.quantize_tensor(x.int(), "fp16")
        with self.assertRaisesRegex(ValueError, "^Quantization type int7 is not supported$"):
            ops.quantize_tensor(x, "int7")
        with self.assertRaisesRegex(RuntimeError, "Quantization type int7 is not supported\n$"):
            torch.jit.script(CASES["quantize_tensor"].call)(x, "int7")

    def test_vmap_calls_once_for_each_element(self):
        def check(name, case):
            calls = [case.sized(SIZES[0]) for _ in range(2)]
            batched = [i for i, argument in enumerate(calls[0]) if isinstance(argument, torch.Tensor)]
            if name.endswith("_list") or name.startswith("auto_quantize") or name.endswith("_"):
                batch = pytree.tree_map(lambda x: x[None] if isinstance(x, torch.Tensor) else x, calls[0])
                in_dims = pytree.tree_map(lambda x: 0 if isinstance(x, torch.Tensor) else None, calls[0])
                with self.assertRaisesRegex(RuntimeError, f"Batching rule not implemented for narrowcast::{name}"):
                    torch.func.vmap(case.call, in_dims=in_dims)(*batch)
            elif batched:
                batch = [torch.stack(xs) if i in batched else xs[0] for i, xs in enumerate(zip(*calls))]
                in_dims = tuple(0 if i in batched else None for i in range(len(batch)))
                actual = torch.func.vmap(case.call, in_dims=in_dims)(*batch)
                expected = [pytree.tree_leaves(case.call(*call)) for call in calls]
                self.assert_same(pytree.tree_leaves(actual), [torch.stack(xs) for xs in zip(*expected)])
        self.for_each_case(check)

    # A constant in place of a gradient would be silently wrong.
    def test_have_a_gradient_or_say_that_they_have_none(self):
        def check(name, case):
            arguments = case.sized(SIZES[0])
            positions = case.differentiable or range(len(arguments))
            inputs = needing_gradients(arguments, positions)
            written = [x.detach() for x in pytree.tree_leaves(inputs[0]) if isinstance(x, torch.Tensor)]
            if name.startswith("auto_quantize"):  # The first argument is written to, so it must not be a leaf.
                inputs = (written if isinstance(inputs[0], list) else written[0], *inputs[1:])
            elif name.endswith("_"):
                inputs = (inputs[0].clone(), *inputs[1:])
            outputs = [x for x in pytree.tree_leaves([case.call(*inputs), inputs[0]])
                       if isinstance(x, torch.Tensor) and x.grad_fn is not None]
            if case.differentiable:
                sum(x.sum() for x in outputs).backward()
                self.assertTrue(inputs[0].grad.any())
            for output in outputs if not case.differentiable else []:
                with self.assertRaisesRegex(RuntimeError, f"derivative for narrowcast::{name} is not implemented"):
                    output.sum().backward()
            whole_numbers_only = name in ("quantize_per_tensor", "quantize_per_channel", "encoded_size", "encode", "decode")
            self.assertEqual(bool(outputs), not whole_numbers_only)
        self.for_each_case(check)


if __name__ == "__main__":
    unittest.main()
