// The FP16 and BFP16 operators: contract, errors, layouts, threads, devices, autograd.
#include <narrowcast/quantize_tensor.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/ops/quantize_tensor/reference.h"
#include "tests/support/devices.h"
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using test::encodes_as_upstream;
using test::kDQuantTypes;
using test::same_bits;
using testing::error_message;
using ::testing::HasSubstr;

TEST(DQuantType, PrintsAndParsesAsTheOperatorsNameIt) {
  std::ostringstream text;
  text << DQuantType::kFp16 << " " << DQuantType::kBfp16;
  EXPECT_EQ(text.str(), "fp16 bfp16");
  EXPECT_EQ(parse_dquant_type("fp16"), DQuantType::kFp16);
  EXPECT_EQ(parse_dquant_type("bfp16"), DQuantType::kBfp16);
}

TEST(DQuantType, RefusesWhatIsNone) {
  for (const std::string name : {"", "FP16", "fp16 ", "int8"}) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { parse_dquant_type(name); }),
              "Quantization type " + name + " is not supported");
  }
  EXPECT_EQ(error_message<c10::ValueError>([] { to_string(static_cast<DQuantType>(7)); }),
            "Quantization type 7 is not supported");
}

// Properties on every device; the reference is PyTorch's result on the same device.
class QuantizeTensorOnDevice : public test::DeviceTest {};

INSTANTIATE_TEST_SUITE_P(Devices, QuantizeTensorOnDevice, test::kDevices, test::name_of_case);

TEST_P(QuantizeTensorOnDevice, EqualsPyTorch) {
  const test::UseThreads one(1);
  for (const at::ScalarType dtype : test::kFloatTypes) {
    for (const int64_t size : test::kSizes) {
      for (const auto& [name, of_cpu] : test::inputs(dtype, size)) {
        const at::Tensor x = of_cpu.to(device());
        for (const DQuantType qtype : kDQuantTypes) {
          SCOPED_TRACE(::testing::Message() << dtype << " " << name << " of size " << size << " as " << qtype);
          const at::Tensor q = quantize_tensor(x, qtype);
          EXPECT_TRUE(encodes_as_upstream(q, x, qtype));
          EXPECT_TRUE(same_bits(dequantize_tensor(q, qtype), test::upstream_dequantize(q, qtype, {})));
          EXPECT_TRUE(same_bits(dequantize_tensor(q, qtype, 1.1), test::upstream_dequantize(q, qtype, 1.1)));
        }
      }
    }
  }
}

// Upstream's BFP16 takes only matrices, and reads non-contiguous ones wrongly.
TEST_P(QuantizeTensorOnDevice, ReadsAnyLayoutOfAnyNumberOfDimensions) {
  const at::Tensor base = at::randn({6, 8, 10}).to(device());
  const at::Tensor channels_last = at::randn({2, 3, 4, 5}).to(device()).contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& x : {base[0][0][0], base.transpose(0, 2), base.slice(0, 1, 6, 2), base.slice(2, 0, 10, 3),
                              base.select(1, 3), base.select(2, 0).unsqueeze(1).expand({6, 4, 8}),
                              base.as_strided({5, 4}, {1, 1}), channels_last, at::_neg_view(base)}) {
    for (const DQuantType qtype : kDQuantTypes) {
      SCOPED_TRACE(::testing::Message() << x.sizes() << x.strides() << " as " << qtype);
      const at::Tensor q = quantize_tensor(x, qtype);
      EXPECT_TRUE(q.is_contiguous());
      EXPECT_TRUE(encodes_as_upstream(q, x.contiguous(), qtype));
      EXPECT_EQ(q.sizes(), x.sizes());
    }
  }
}

TEST_P(QuantizeTensorOnDevice, DequantizesAnyLayout) {
  const at::Tensor q = at::randn({6, 8, 10}).to(at::kHalf).to(device());
  for (const at::Tensor& strided : {q[0][0][0], q.transpose(0, 2), q.slice(2, 0, 10, 3), q.select(1, 3)}) {
    for (const DQuantType qtype : kDQuantTypes) {
      const at::Tensor decoded = dequantize_tensor(strided, qtype, 3.0);
      EXPECT_TRUE(decoded.is_contiguous());
      EXPECT_TRUE(same_bits(decoded, test::upstream_dequantize(strided, qtype, 3.0)));
    }
  }
}

TEST_P(QuantizeTensorOnDevice, HandlesTensorsWithoutElements) {
  for (const DQuantType qtype : kDQuantTypes) {
    const at::Tensor q = quantize_tensor(at::empty({0, 3}).to(device()), qtype);
    EXPECT_EQ(q.sizes(), at::IntArrayRef({0, 3}));
    EXPECT_EQ(q.scalar_type(), at::kHalf);
    EXPECT_EQ(dequantize_tensor(q, qtype, 2).sizes(), at::IntArrayRef({0, 3}));
  }
}

TEST_P(QuantizeTensorOnDevice, ReturnsMemoryOfItsOwn) {
  const at::Tensor x = at::ones({3}, at::kHalf).to(device());
  const at::Tensor q = quantize_tensor(x, DQuantType::kFp16);
  q.zero_();
  EXPECT_EQ(x.sum().item<float>(), 3);
}

TEST(QuantizeTensor, GivesEqualBitsOnAnyNumberOfThreads) {
  const at::Tensor x = at::randn({300007});
  for (const DQuantType qtype : kDQuantTypes) {
    const test::UseThreads one(1);
    const at::Tensor q = quantize_tensor(x, qtype);
    const at::Tensor decoded = dequantize_tensor(q, qtype, 0.3);
    for (const int threads : {2, 4}) {
      const test::UseThreads several(threads);
      EXPECT_TRUE(same_bits(test::code_bits(quantize_tensor(x, qtype)), test::code_bits(q)));
      EXPECT_TRUE(same_bits(dequantize_tensor(q, qtype, 0.3), decoded));
    }
  }
}

// The last one is on the CPU: devices may differ.
TEST_P(QuantizeTensorOnDevice, TakesListsTensorByTensor) {
  const std::vector<at::Tensor> xs{at::randn({3, 4}).to(device()), at::randn({5}, at::kDouble).to(device()),
                                   at::empty({0}).to(device()), at::randn({2, 1, 2})};
  for (const DQuantType qtype : kDQuantTypes) {
    const std::vector<at::Tensor> qs = quantize_tensor_list(xs, qtype);
    const std::vector<at::Tensor> plain = dequantize_tensor_list(qs, qtype);
    const std::vector<at::Tensor> divided = dequantize_tensor_list(qs, qtype, 1.7);
    ASSERT_EQ(qs.size(), xs.size());
    ASSERT_EQ(divided.size(), xs.size());
    for (size_t i = 0; i < xs.size(); ++i) {
      EXPECT_TRUE(encodes_as_upstream(qs[i], xs[i], qtype));
      EXPECT_TRUE(same_bits(plain[i], dequantize_tensor(qs[i], qtype)));
      EXPECT_TRUE(same_bits(divided[i], dequantize_tensor(qs[i], qtype, 1.7)));
    }
  }
}

TEST(QuantizeTensorList, OfNothingIsNothing) {
  EXPECT_TRUE(quantize_tensor_list({}, DQuantType::kFp16).empty());
  EXPECT_TRUE(dequantize_tensor_list({}, DQuantType::kBfp16, 2).empty());
}

TEST(QuantizeTensor, KnowsItsOutputOnTheMetaDevice) {
  const at::Tensor x = at::empty({4, 6}, at::device(at::kMeta).dtype(at::kBFloat16)).t();
  const at::Tensor q = quantize_tensor(x, DQuantType::kBfp16);
  EXPECT_TRUE(q.is_meta() && q.is_contiguous());
  EXPECT_EQ(q.sizes(), x.sizes());
  EXPECT_EQ(q.scalar_type(), at::kHalf);
  const at::Tensor decoded = dequantize_tensor(q, DQuantType::kFp16, 2);
  EXPECT_TRUE(decoded.is_meta());
  EXPECT_EQ(decoded.scalar_type(), at::kFloat);
  EXPECT_TRUE(quantize_tensor_list(x, DQuantType::kFp16)[0].is_meta());
  EXPECT_THROW(quantize_tensor(q.to(at::kLong), DQuantType::kFp16), c10::TypeError);
}

TEST(QuantizeTensorErrors, NameTheTensorAndItsDtype) {
  const at::Tensor x = at::ones({2});
  EXPECT_EQ(error_message<c10::TypeError>([&] { quantize_tensor(x.to(at::kInt), DQuantType::kBfp16); }),
            "x must be float32, float64, bfloat16 or float16, not Int");
  EXPECT_EQ(error_message<c10::TypeError>([&] { dequantize_tensor(x, DQuantType::kFp16); }),
            "q: tensor dtype is Float while expected to be FP16.");
  EXPECT_EQ(error_message<c10::TypeError>([&] {
              quantize_tensor_list({x, x.to(at::kBool)}, DQuantType::kFp16);
            }),
            "xs[1] must be float32, float64, bfloat16 or float16, not Bool");
  EXPECT_EQ(error_message<c10::TypeError>([&] {
              dequantize_tensor_list({x.to(at::kHalf), x.to(at::kBFloat16)}, DQuantType::kBfp16);
            }),
            "qs[1]: tensor dtype is BFloat16 while expected to be FP16.");
}

TEST(QuantizeTensorErrors, NameTheUndefinedTensor) {
  const auto message = [](const auto& call) { return error_message<c10::ValueError>(call); };
  EXPECT_EQ(message([] { quantize_tensor({}, DQuantType::kFp16); }), "x is an undefined tensor");
  EXPECT_EQ(message([] { dequantize_tensor({}, DQuantType::kFp16); }), "q is an undefined tensor");
  const std::vector<at::Tensor> list{at::ones({1}, at::kHalf), {}};
  EXPECT_EQ(message([&] { quantize_tensor_list(list, DQuantType::kFp16); }), "xs[1] is an undefined tensor");
  EXPECT_EQ(message([&] { dequantize_tensor_list(list, DQuantType::kFp16); }), "qs[1] is an undefined tensor");
}

// Called with a name, like TorchScript and Python do.
TEST(QuantizeTensorErrors, NameTheUnknownType) {
  for (const char* name : {"quantize_tensor", "dequantize_tensor", "quantize_tensor_list", "dequantize_tensor_list"}) {
    const bool list = std::string(name).find("list") != std::string::npos;
    torch::jit::Stack stack{list ? c10::IValue(std::vector<at::Tensor>{}) : c10::IValue(at::ones({1}, at::kHalf)),
                            "int7"};
    if (std::string(name).find("dequantize") == 0) stack.emplace_back(c10::nullopt);
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("narrowcast::") + name).c_str(), "");
    EXPECT_EQ(error_message<c10::ValueError>([&] { op.callBoxed(stack); }), "Quantization type int7 is not supported");
  }
}

template <class Body>
void expect_no_derivative(const std::string& name, const Body& forward) {
  const at::Tensor output = forward();
  ASSERT_TRUE(output.requires_grad());
  try {
    output.sum().backward();
    FAIL() << "backward did not throw";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("derivative for narrowcast::" + name + " is not implemented"));
  }
}

TEST(QuantizeTensorAutograd, BackwardThrows) {
  const at::Tensor x = at::randn({3, 5}).requires_grad_();
  const at::Tensor q = at::randn({3, 5}).to(at::kHalf).requires_grad_();
  for (const DQuantType qtype : kDQuantTypes) {
    expect_no_derivative("quantize_tensor", [&] { return quantize_tensor(x, qtype); });
    expect_no_derivative("quantize_tensor_list", [&] { return quantize_tensor_list(x, qtype)[0]; });
    expect_no_derivative("dequantize_tensor", [&] { return dequantize_tensor(q, qtype); });
    expect_no_derivative("dequantize_tensor_list", [&] { return dequantize_tensor_list(q, qtype, 2)[0]; });
  }
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(quantize_tensor(x, DQuantType::kFp16).requires_grad());
}

}  // namespace
}  // namespace narrowcast
