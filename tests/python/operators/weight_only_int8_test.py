"""Weight-only int8 equals the arithmetic of PyTorch's benchmarks/gpt_fast/quantize.py."""
import contextlib
import unittest

import torch
from torch import func
from torch.nn.functional import linear

from support.exact import FLOATS, ExactTestCase, every_pattern, hostile_numbers, ops, random_bits

EPS = 2.0**-23
SEED = 7
TARGETS = ((-128, 127, torch.int8), (-127, 127, torch.int8), (0, 255, torch.uint8), (-7, 8, torch.int8))


def symmetric_codes(x, low, high, dtype):
    """Rounds every step to x's dtype: each is a PyTorch operator on tensors of that dtype."""
    largest = torch.maximum(-x.amin(1).clamp(max=0), x.amax(1).clamp(min=0))
    scales = (largest / ((high - low) / 2)).clamp(min=EPS)
    codes = (x / scales[:, None]).round().clamp(low, high).to(dtype)
    return codes, scales, torch.zeros(len(x), dtype=torch.int64)


def finite_rows(x, columns):
    x = x[x.isfinite()]
    return x[:len(x) // columns * columns].view(-1, columns)


class DynamicallyQuantizePerChannel(ExactTestCase):
    def assert_as_reference(self, x, targets=TARGETS):
        for low, high, dtype in targets:
            with self.subTest(input_dtype=x.dtype, shape=x.shape, target=(low, high, dtype)):
                self.assert_same(ops.dynamically_quantize_per_channel(x, low, high, dtype),
                                 symmetric_codes(x, low, high, dtype))

    def test_random_rows_of_every_magnitude(self):
        torch.manual_seed(SEED)
        for dtype in FLOATS:
            for columns in (1, 3, 64, 1000):
                magnitudes = torch.linspace(-30, 15, 50).exp2()[:, None]
                self.assert_as_reference((torch.randn(50, columns) * magnitudes).to(dtype))

    def test_every_binary16_and_bfloat16_number(self):
        for dtype in (torch.float16, torch.bfloat16):
            for columns in (16, 1000):
                self.assert_as_reference(finite_rows(every_pattern(dtype), columns))

    def test_random_patterns(self):
        torch.manual_seed(SEED)
        for dtype in (torch.float32, torch.float64):
            self.assert_as_reference(finite_rows(random_bits(dtype, 1_000_000), 128))

    def test_limits_and_ties(self):
        for dtype in FLOATS:
            self.assert_as_reference(hostile_numbers(dtype)[None])
            self.assert_as_reference(hostile_numbers(dtype)[:, None])
            self.assert_as_reference(torch.zeros(3, 4, dtype=dtype))
            self.assert_as_reference(torch.arange(-255, 256).to(dtype)[None] / 2)

    def test_infinity_is_a_scale_and_its_codes_are_zero(self):
        for dtype in FLOATS:
            x = torch.tensor([[1.0, float("inf"), -2.0], [3.0, -4.0, 0.5]], dtype=dtype)
            codes, scales, _ = ops.dynamically_quantize_per_channel(x, -128, 127, torch.int8)
            self.assert_same(scales, symmetric_codes(x, -128, 127, torch.int8)[1])
            self.assertEqual(codes[0].tolist(), [0, 0, 0])
            self.assert_same(codes[1], symmetric_codes(x[1:], -128, 127, torch.int8)[0][0])

    def test_int16_for_wide_floats(self):
        for dtype in (torch.float32, torch.float64):
            self.assert_as_reference(torch.randn(20, 300, dtype=dtype), [(-2**15, 2**15 - 1, torch.int16)])

    def test_strided(self):
        for dtype in FLOATS:
            self.assert_as_reference(torch.randn(60, 80).to(dtype).t()[::3, 5:])


def small_layer():
    """Weights, scales and bias for which every sum and product is exact, in any order and any dtype."""
    return (torch.randint(-8, 9, (24, 16), dtype=torch.int8), torch.randint(-3, 3, (24,)).float().exp2(),
            torch.randint(-4, 5, (24,)).float())


def int8_linear(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor):
    return torch.ops.narrowcast.weight_only_int8_linear(x, weight, scales, bias)


class WeightOnlyInt8Linear(ExactTestCase):
    """Small whole numbers and powers of two: every sum and product is exact in any order, so bits must be equal."""

    def test_exact_sums(self):
        torch.manual_seed(SEED)
        weight, scales, bias = small_layer()
        for dtype in FLOATS:
            for leading in ((), (1,), (3,), (7,), (2, 5), (40,)):
                with self.subTest(dtype=dtype, leading=leading):
                    x = torch.randint(-1, 2, (*leading, 16)).to(dtype)
                    exact = linear(x.double(), weight.double()) * scales
                    self.assert_same(ops.weight_only_int8_linear(x, weight, scales), exact.to(dtype))
                    self.assert_same(ops.weight_only_int8_linear(x, weight, scales, bias), (exact + bias).to(dtype))

    def test_the_reference_expression_in_float32(self):
        weight, scales, _ = small_layer()
        for rows in (1, 4, 5, 64):
            x = torch.randint(-4, 5, (rows, 16)).float()
            self.assert_same(ops.weight_only_int8_linear(x, weight, scales), linear(x, weight.to(x.dtype)) * scales)

    def test_float64_is_the_reference_expression(self):
        torch.manual_seed(SEED)
        weight = torch.randint(-128, 128, (33, 130), dtype=torch.int8)
        bias = torch.randn(33)
        for scales in (torch.rand(33, dtype=torch.float64), torch.rand(33)):
            for leading in ((), (1,), (3,), (70,), (2, 5)):
                x = torch.randn(*leading, 130, dtype=torch.float64)
                product = linear(x, weight.to(x.dtype)) * scales
                self.assert_same(ops.weight_only_int8_linear(x, weight, scales), product)
                self.assert_same(ops.weight_only_int8_linear(x, weight, scales, bias), product + bias)

    def test_gradients_are_those_of_finite_differences(self):
        torch.manual_seed(SEED)
        weight = torch.randint(-8, 9, (3, 4), dtype=torch.int8)
        scales = torch.rand(3, dtype=torch.float64)
        bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
        for leading in ((), (5,), (2, 2)):
            x = torch.randn(*leading, 4, dtype=torch.float64, requires_grad=True)
            arguments = (x, weight, scales, bias)
            self.assertTrue(torch.autograd.gradcheck(ops.weight_only_int8_linear, arguments, check_forward_ad=True,
                                                     check_batched_grad=True, check_batched_forward_grad=True))
            self.assertTrue(torch.autograd.gradgradcheck(ops.weight_only_int8_linear, arguments,
                                                         check_fwd_over_rev=True, check_rev_over_rev=True))

    def test_the_gradient_of_a_compiled_backward_pass(self):
        weight, scales, bias = small_layer()
        x = torch.randint(-4, 5, (5, 16)).float()
        gradients = []
        for compiled in (False, True):
            leaves = [x.clone().requires_grad_(), bias.clone().requires_grad_()]
            loss = ops.weight_only_int8_linear(leaves[0], weight, scales, leaves[1]).square().sum()
            compiler = torch.compile(backend="eager")
            with torch._dynamo.compiled_autograd._enable(compiler) if compiled else contextlib.nullcontext():
                loss.backward()
            gradients.append([leaf.grad for leaf in leaves])
        self.assert_same(*gradients)


class Transforms(ExactTestCase):
    """torch.func's transforms equal those of the reference's expression; all sums are exact, as above."""

    def setUp(self):
        torch.manual_seed(SEED)
        self.weight, self.scales, self.bias = small_layer()
        self.x = torch.randint(-4, 5, (6, 16)).float()

    def int8(self, x, bias):
        return ops.weight_only_int8_linear(x, self.weight, self.scales, bias)

    def reference(self, x, bias):
        return linear(x, self.weight.to(x.dtype)) * self.scales + bias

    def assert_equal_under(self, transform):
        self.assert_same(transform(self.int8), transform(self.reference))

    def test_reverse_mode(self):
        x, bias = self.x, self.bias
        of_output = torch.randint(-4, 5, (6, 24)).float()
        self.assert_equal_under(lambda f: func.grad(lambda x, b: f(x, b).square().sum(), argnums=(0, 1))(x, bias))
        self.assert_equal_under(lambda f: func.vjp(f, x, bias)[1](of_output))
        self.assert_equal_under(lambda f: func.jacrev(f, argnums=(0, 1))(x, bias))
        self.assert_equal_under(lambda f: func.hessian(lambda x: f(x, bias).square().sum())(x))

    def test_forward_mode(self):
        x, bias = self.x, self.bias
        tangents = (torch.randint(-4, 5, (6, 16)).float(), torch.randint(-4, 5, (24,)).float())
        self.assert_equal_under(lambda f: func.jvp(f, (x, bias), tangents))
        self.assert_equal_under(lambda f: func.jvp(lambda x: f(x, bias), (x,), tangents[:1]))
        self.assert_equal_under(lambda f: func.jvp(lambda b: f(x, b), (bias,), tangents[1:]))
        self.assert_equal_under(lambda f: func.jacfwd(f, argnums=(0, 1))(x, bias))

    def test_vmap(self):
        x, bias = self.x, self.bias
        self.assert_equal_under(lambda f: func.vmap(f, in_dims=(0, None))(x, bias))
        self.assert_equal_under(lambda f: func.vmap(f, in_dims=(1, None), out_dims=1)(x.view(2, 3, 16), bias))
        self.assert_equal_under(lambda f: func.vmap(f, in_dims=(None, 0))(x, bias.repeat(3, 1)))
        of_sample = lambda f: func.grad(lambda x, b: f(x, b).square().sum(), argnums=(0, 1))
        self.assert_equal_under(lambda f: func.vmap(of_sample(f), in_dims=(0, None))(x, bias))
        weights = torch.stack([self.weight, -self.weight])
        self.assert_same(func.vmap(ops.weight_only_int8_linear, in_dims=(None, 0, None))(x, weights, self.scales)[1],
                         -ops.weight_only_int8_linear(x, self.weight, self.scales))

    def test_scales_have_no_derivative(self):
        for transform in (func.grad(lambda s: ops.weight_only_int8_linear(self.x, self.weight, s).sum()),
                          lambda s: func.jvp(lambda s: ops.weight_only_int8_linear(self.x, self.weight, s), (s,), (s,))):
            with self.assertRaisesRegex(ValueError, "^scales requires a gradient, but .* does not compute it"):
                transform(self.scales)


class Autocast(ExactTestCase):
    """Compares with torch.nn.functional.linear under autocast."""

    def test_computes_in_the_dtype_of_autocast(self):
        weight, scales, bias = small_layer()
        scripted = torch.jit.script(int8_linear)
        for rows in (3, 70):
            for dtype in FLOATS:
                for to in (torch.bfloat16, torch.float16):
                    x = torch.randn(rows, 16).to(dtype)
                    with torch.autocast("cpu", to):
                        actual = ops.weight_only_int8_linear(x, weight, scales, bias)
                        self.assertEqual(actual.dtype, linear(x, weight.to(dtype)).dtype)
                        for _ in range(3):  # The executor changes the code in the first two runs.
                            self.assert_same(scripted(x, weight, scales, bias), actual)
                    self.assert_same(actual, ops.weight_only_int8_linear(x.to(actual.dtype), weight, scales, bias))

    def test_has_gradients(self):
        weight, scales, bias = small_layer()
        x, bias = torch.randint(-4, 5, (5, 16)).float().requires_grad_(), bias.requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            ops.weight_only_int8_linear(x, weight, scales, bias).sum().backward()
        self.assert_same(x.grad, (scales @ weight.float()).bfloat16().float().expand(5, 16))
        self.assert_same(bias.grad, torch.full((24,), 5.0))


if __name__ == "__main__":
    unittest.main()
