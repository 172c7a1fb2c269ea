// The operators of the reference tier on a GPU: bytes moved per second, as a part of
// what a device-to-device copy moves in the same run; and the weight-only int8
// linear layer beside the reference's expression linear(x, w.to(x.dtype)) * scales
// and the dense layer in bfloat16. Everything takes turns, from a cold L2 cache.
// Exit code 1 if a target is missed, 3 where there is no GPU.
#include <ATen/ATen.h>
#include <absl/flags/flag.h>
#include <c10/core/InferenceMode.h>

#include <cstdio>
#include <string>
#include <vector>

#include "ops/affine_uint8.h"
#include "ops/quantize_tensor.h"
#include "ops/weight_only_int8.h"
#include "tests/bench/device_timer.h"
#include "trainer/program/command_line.h"

ABSL_FLAG(int64_t, mebibytes, 512, "float32 that an operator reads or writes");
ABSL_FLAG(int64_t, rounds, 21, "measured turns of each, after two to warm up");

namespace narrowcast::bench {
namespace {

constexpr int kNoGpu = 3;
// Parts of the copy's rate.
constexpr double kQuantizeTarget = 0.90;
constexpr double kOneRowTarget = 0.85;

const at::TensorOptions kOnGpu = at::device(at::kCUDA).dtype(at::kFloat);

double bytes_of(const at::Tensor& tensor) { return static_cast<double>(tensor.numel() * tensor.element_size()); }

// Something to measure and the part of the copy's rate that it must reach, or 0.
struct Row {
  Work work;
  double target = 0;
};

// The first is the copy, which reads and writes `floats`.
std::vector<Row> with_copy(const at::Tensor& floats) {
  const at::Tensor other = at::empty_like(floats);
  return {{{"copy", 2 * bytes_of(floats), [=] {
              check_cuda(cudaMemcpyAsync(other.mutable_data_ptr(), floats.const_data_ptr(),
                                         static_cast<size_t>(bytes_of(floats)), cudaMemcpyDeviceToDevice, nullptr),
                         "cudaMemcpyAsync");
            }}}};
}

double rate_of_copy(const std::vector<Row>& rows) { return rows.front().work.rate(); }

void let_all_take_turns(std::vector<Row>& rows) {
  std::vector<Work> works;
  for (const Row& row : rows) works.push_back(row.work);
  take_turns(works, absl::GetFlag(FLAGS_rounds));
  for (size_t i = 0; i < rows.size(); ++i) rows[i].work = works[i];
}

// Prints a line for each; false if one misses its target.
bool report(const std::vector<Row>& rows) {
  bool met = true;
  for (const Row& row : rows) {
    const double part = row.work.rate() / rate_of_copy(rows);
    const bool passed = part >= row.target;
    std::printf("  %-44s %7.0f GB/s %6.1f%% of the copy", row.work.name.c_str(), row.work.rate() * 1e-9, 100 * part);
    if (row.target > 0) std::printf("  %s: %.0f%% wanted", passed ? "PASS" : "FAIL", 100 * row.target);
    std::printf("\n");
    met = met && passed;
  }
  return met;
}

void add_affine_uint8(std::vector<Row>& rows, const at::Tensor& x) {
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  const auto [scales, zero_points] = choose_qparams_per_channel(x);
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  const double both = bytes_of(x) + bytes_of(codes);
  const std::string of = std::string(" ") + c10::toString(x.scalar_type()) + " of " + std::to_string(x.size(1));
  const double target = x.scalar_type() == at::kFloat ? kQuantizeTarget : 0;
  rows.push_back({{"choose_qparams_per_tensor" + of, bytes_of(x), [=] { choose_qparams_per_tensor(x); }}});
  rows.push_back({{"choose_qparams_per_channel" + of, bytes_of(x), [=] { choose_qparams_per_channel(x); }}});
  rows.push_back(
      {{"quantize_per_tensor" + of, both, [=, s = scale, z = zero_point] { quantize_per_tensor(x, s, z); }}, target});
  rows.push_back(
      {{"quantize_per_channel" + of, both, [=, s = scales, z = zero_points] { quantize_per_channel(x, s, z); }},
       target});
  const double decoded = 5 * bytes_of(codes);
  rows.push_back({{"dequantize_per_tensor of " + std::to_string(x.size(1)), decoded,
                   [=, s = scale, z = zero_point] { dequantize_per_tensor(codes, s, z); }}});
  rows.push_back({{"dequantize_per_channel of " + std::to_string(x.size(1)), decoded,
                   [=, s = scales, z = zero_points] { dequantize_per_channel(codes, s, z); }}});
}

void add_quantize_tensor(std::vector<Row>& rows, const at::Tensor& x) {
  for (const DQuantType qtype : {DQuantType::kFp16, DQuantType::kBfp16}) {
    const at::Tensor q = quantize_tensor(x, qtype);
    const double both = bytes_of(x) + bytes_of(q);
    const std::string name(to_string(qtype));
    rows.push_back({{"quantize_tensor " + name, both, [=] { quantize_tensor(x, qtype); }}});
    rows.push_back({{"dequantize_tensor " + name, both, [=] { dequantize_tensor(q, qtype); }}});
  }
}

bool measure_elementwise() {
  bool met = true;
  const int64_t n = (absl::GetFlag(FLAGS_mebibytes) << 20) / 4;
  for (const int64_t row_size : {512, 4096}) {
    const at::Tensor x = at::randn({n / row_size, row_size}, kOnGpu) * 1e-3;
    std::vector<Row> rows = with_copy(x);
    add_affine_uint8(rows, x);
    add_affine_uint8(rows, x.to(at::kBFloat16));
    if (row_size == 512) add_quantize_tensor(rows, x);
    // Reads x twice, to find the scales and to write codes, and writes a byte for each element.
    rows.push_back({{"dynamically_quantize_per_channel of " + std::to_string(row_size),
                     2 * bytes_of(x) + static_cast<double>(x.numel()),
                     [=] { dynamically_quantize_per_channel(x, -128, 127, at::kChar); }}});
    std::printf("rows of %lld\n", static_cast<long long>(row_size));
    let_all_take_turns(rows);
    met = report(rows) && met;
  }
  return met;
}

// Bytes of each entry are those of the int8 codes: the rest of a layer's bytes is small beside them.
bool measure_linear(int64_t row_count) {
  constexpr int64_t kSize = 4096;
  const at::Tensor codes = at::randint(-128, 128, {kSize, kSize}, kOnGpu.dtype(at::kChar));
  const at::Tensor scales = at::rand({kSize}, kOnGpu).to(at::kBFloat16);
  const at::Tensor dense = codes.to(at::kBFloat16);
  const at::Tensor x = at::randn({row_count, kSize}, kOnGpu).to(at::kBFloat16);
  std::vector<Row> rows = with_copy(at::empty({int64_t{64} << 20}, kOnGpu));
  const double bytes = bytes_of(codes);
  rows.push_back(
      {{"int8", bytes, [=] { weight_only_int8_linear(x, codes, scales); }}, row_count == 1 ? kOneRowTarget : 0});
  rows.push_back({{"reference", bytes, [=] { at::linear(x, codes.to(at::kBFloat16)) * scales; }}});
  rows.push_back({{"dense bf16", bytes, [=] { at::linear(x, dense); }}});
  let_all_take_turns(rows);
  std::printf("weight_only_int8_linear bf16 4096 x 4096, %lld rows\n", static_cast<long long>(row_count));
  const double int8 = rows[1].work.rate();
  std::printf("  %.2f us; %.2fx as fast as the reference, %.2fx as fast as dense bf16\n", bytes / int8 * 1e6,
              int8 / rows[2].work.rate(), int8 / rows[3].work.rate());
  return report(rows);
}

int run() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "narrowcast_cuda_reference_bench: no GPU to measure: %s\n", cudaGetErrorString(error));
    return kNoGpu;
  }
  const c10::InferenceMode no_gradients;
  cudaDeviceProp device = {};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s; GB/s of bytes read and written\n", device.name);
  bool met = measure_elementwise();
  for (const int64_t row_count : {1, 4, 16, 256}) met = measure_linear(row_count) && met;
  return met ? 0 : 1;
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_cuda_reference_bench";
  description.version = "0";
  description.summary = "Times the operators of the reference tier on a GPU and checks the targets.";
  description.usage = "narrowcast_cuda_reference_bench [flags]";
  description.groups = {{"Workload", {"mebibytes", "rounds"}}};
  description.examples = {{"on a GPU with little memory", "narrowcast_cuda_reference_bench --mebibytes=128"}};
  description.exit_codes = {{0, "every target was met"}, {1, "a target was missed"}, {kNoGpu, "there is no GPU"}};
  return description;
}

}  // namespace
}  // namespace narrowcast::bench

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::bench::description(), argc, argv,
                                       [](const auto&) { return narrowcast::bench::run(); });
}
