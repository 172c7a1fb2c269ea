// The operators of the reference tier on a GPU. Reports bytes moved per second, as a share of the rate of a
// device-to-device copy in the same run. Compares the weight-only int8 linear layer with the reference's expression
// linear(x, w.to(x.dtype)) * scales, with LibTorch's _weight_int8pack_mm and with the dense layer in bfloat16. Prints
// the errors of the layers with codes. All operations take turns, with a cold L2 cache.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <absl/flags/flag.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/affine_uint8.h>
#include <narrowcast/quantize_tensor.h>
#include <narrowcast/weight_only_int8.h>
#include "tests/bench/cuda/gpu_bench.h"

namespace narrowcast::bench {
namespace {

// Shares of the copy's rate: some percent below the results of an H200.
constexpr double kFloat32Target = 0.90;
constexpr double kBfloat16Target = 0.75;
constexpr double kShortBfloat16RowsTarget = 0.55;  // A lane has only two packs of a row of 512.
constexpr double kOneRowTarget = 0.40;

const at::TensorOptions kOnGpu = at::device(at::kCUDA).dtype(at::kFloat);

double bytes_of(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

// Copies `from` to memory that the result owns.
Work copy_of(const at::Tensor& from) {
  const at::Tensor to = at::empty_like(from);
  Work copy = device_copy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<int64_t>(from.nbytes()));
  copy.enqueue = [from, to, enqueue = copy.enqueue] { enqueue(); };
  return copy;
}

void add_affine_uint8(std::vector<Work>& all, const at::Tensor& x) {
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  const auto [scales, zero_points] = choose_qparams_per_channel(x);
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  const double both = bytes_of(x) + bytes_of(codes);
  const double target = x.scalar_type() == at::kFloat ? kFloat32Target : kBfloat16Target;
  const bool has_short_rows = x.scalar_type() != at::kFloat && x.size(1) <= 512;
  const double target_of_rows = has_short_rows ? kShortBfloat16RowsTarget : target;
  const std::string of = std::string(" of ") + c10::toString(x.scalar_type());
  all.push_back({"choose_qparams_per_tensor" + of, bytes_of(x), [=] { choose_qparams_per_tensor(x); }});
  all.push_back({"choose_qparams_per_channel" + of, bytes_of(x), [=] { choose_qparams_per_channel(x); }});
  all.push_back(
      {"quantize_per_tensor" + of, both, [=, s = scale, z = zero_point] { quantize_per_tensor(x, s, z); }, target});
  all.push_back({"quantize_per_channel" + of, both, [=, s = scales, z = zero_points] { quantize_per_channel(x, s, z); },
                 target_of_rows});
}

void add_dequantize(std::vector<Work>& all, const at::Tensor& x) {
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  const auto [scales, zero_points] = choose_qparams_per_channel(x);
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  const double both = bytes_of(x) + bytes_of(codes);
  all.push_back(
      {"dequantize_per_tensor", both, [=, s = scale, z = zero_point] { dequantize_per_tensor(codes, s, z); }});
  all.push_back(
      {"dequantize_per_channel", both, [=, s = scales, z = zero_points] { dequantize_per_channel(codes, s, z); }});
}

void add_quantize_tensor(std::vector<Work>& all, const at::Tensor& x) {
  for (const DQuantType qtype : {DQuantType::kFp16, DQuantType::kBfp16}) {
    const at::Tensor q = quantize_tensor(x, qtype);
    const double both = bytes_of(x) + bytes_of(q);
    const std::string name(to_string(qtype));
    all.push_back({"quantize_tensor " + name, both, [=] { quantize_tensor(x, qtype); }});
    all.push_back({"dequantize_tensor " + name, both, [=] { dequantize_tensor(q, qtype); }});
  }
}

bool measure_rows_of(int64_t row_size) {
  const int64_t rows = (absl::GetFlag(FLAGS_mebibytes) << 20) / 4 / row_size;
  const at::Tensor x = at::randn({rows, row_size}, kOnGpu) * 1e-3;
  std::vector<Work> all = {copy_of(x)};
  add_affine_uint8(all, x);
  add_affine_uint8(all, x.to(at::kBFloat16));
  add_dequantize(all, x);
  add_quantize_tensor(all, x);
  // Reads x twice, to find the scales and to encode, and writes a byte for each element.
  all.push_back({"dynamically_quantize_per_channel", 2 * bytes_of(x) + static_cast<double>(x.numel()),
                 [=] { dynamically_quantize_per_channel(x, -128, 127, at::kChar); }});
  return measure("rows of " + std::to_string(row_size), all);
}

// Replays what `body` enqueues as one CUDA graph, so that the GPU need not wait for the CPU between short kernels.
std::function<void()> recorded(const std::function<void()>& body) {
  c10::cuda::device_synchronize();
  auto graph = std::make_shared<at::cuda::CUDAGraph>();
  {
    const c10::cuda::CUDAStreamGuard not_the_default(c10::cuda::getStreamFromPool());  // It cannot be recorded.
    body();  // Libraries prepare themselves at their first call.
    c10::cuda::device_synchronize();
    graph->capture_begin();
    body();
    graph->capture_end();
  }
  return [graph] { graph->replay(); };
}

// Layers of 4096 x 4096 in sequence: together they exceed any cache, so that each is read from memory.
struct Layers {
  explicit Layers(int64_t row_count) : x(at::randn({row_count, kSize}, kOnGpu).to(at::kBFloat16)) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      codes.push_back(at::randint(-128, 128, {kSize, kSize}, kOnGpu.dtype(at::kChar)));
      scales.push_back(at::rand({kSize}, kOnGpu).to(at::kBFloat16));
      dense.push_back(codes.back().to(at::kBFloat16));
    }
  }

  // Layer i by our operator, by the reference's expression, and by LibTorch's operator for such codes.
  at::Tensor int8(size_t i) const { return weight_only_int8_linear(x, codes[i], scales[i]); }
  at::Tensor reference(size_t i) const { return at::linear(x, codes[i].to(at::kBFloat16)) * scales[i]; }
  at::Tensor libtorch(size_t i) const { return at::_weight_int8pack_mm(x, codes[i], scales[i]); }

  // The root mean square error of a layer's result, relative to the exact result.
  double error_of(const at::Tensor& result, size_t i) const {
    const at::Tensor exact = at::linear(x.to(at::kDouble), codes[i].to(at::kDouble)) * scales[i];
    return ((result - exact).norm() / exact.norm()).item<double>();
  }

  // Runs all layers.
  void run_int8() const {
    for (size_t i = 0; i < kLayers; ++i) int8(i);
  }
  void run_reference() const {
    for (size_t i = 0; i < kLayers; ++i) reference(i);
  }
  void run_libtorch() const {
    for (size_t i = 0; i < kLayers; ++i) libtorch(i);
  }
  void run_dense() const {
    for (size_t i = 0; i < kLayers; ++i) at::linear(x, dense[i]);
  }

  static constexpr int64_t kSize = 4096;
  static constexpr int64_t kLayers = 16;
  at::Tensor x;  // bfloat16 [row_count, kSize]
  std::vector<at::Tensor> codes;
  std::vector<at::Tensor> scales;
  std::vector<at::Tensor> dense;
};

// The bytes of each entry are the bytes of the int8 codes: the rest of a layer's bytes is small in comparison.
bool measure_linear(int64_t row_count) {
  const Layers layers(row_count);
  const double bytes = static_cast<double>(Layers::kLayers) * bytes_of(layers.codes.front());
  const at::Tensor from = at::zeros({absl::GetFlag(FLAGS_mebibytes) << 20}, kOnGpu.dtype(at::kByte));
  for (const auto& [name, result] : {std::pair("weight_only_int8_linear", layers.int8(0)),
                                     std::pair("linear(x, w.to(x.dtype)) * scales", layers.reference(0)),
                                     std::pair("_weight_int8pack_mm", layers.libtorch(0))}) {
    std::printf("%ld rows, error of %s: %.2e\n", row_count, name, layers.error_of(result, 0));
  }
  return measure(
      "bf16 layers of 4096 x 4096, " + std::to_string(row_count) + " rows; bytes are those of int8 codes",
      {copy_of(from),
       {"weight_only_int8_linear", bytes, recorded([&] { layers.run_int8(); }), row_count == 1 ? kOneRowTarget : 0},
       {"linear(x, w.to(x.dtype)) * scales", bytes, recorded([&] { layers.run_reference(); })},
       {"_weight_int8pack_mm", bytes, recorded([&] { layers.run_libtorch(); })},
       {"dense bf16 linear", bytes, recorded([&] { layers.run_dense(); })}});
}

bool measure_all() {
  const c10::InferenceMode no_gradients;
  bool met = true;
  for (const int64_t row_size : {512, 4096}) met = measure_rows_of(row_size) && met;
  for (const int64_t row_count : {1, 4, 16, 64, 256}) met = measure_linear(row_count) && met;
  return met;
}

}  // namespace
}  // namespace narrowcast::bench

int main(int argc, char** argv) {
  return narrowcast::bench::run_gpu_bench("narrowcast_cuda_reference_bench",
                                          "Times the operators of the reference tier on a GPU and checks the targets.",
                                          argc, argv, narrowcast::bench::measure_all);
}
