// The kernels of the wire formats on a GPU: bytes moved per second, as a share of the rate of a device-to-device copy
// in the same run.
#include <absl/flags/flag.h>

#include <algorithm>
#include <string>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/cuda/wire/variable_kernels.h"
#include "ops/cuda/wire/wire_kernels.h"
#include "tests/bench/cuda/gpu_bench.h"

namespace narrowcast::bench {
namespace {

// Shares of the copy's rate that kernels must reach with rounding to nearest.
constexpr double kEncodeTarget = 0.90;
constexpr double kDecodeTarget = 0.88;

// The number of messages that are summed, and the share that int8 must reach: some percent below the results of an
// H200. A message has so few bytes per element that instructions limit the rate, most with few messages
// (docs/evidence/gpu.md). For other formats the share is only reported.
struct Average {
  int64_t ranks;
  double target_of_int8;
};
constexpr Average kAverages[] = {{2, 0.52}, {4, 0.60}, {8, 0.66}, {16, 0.70}};

bool is_int8(WireFormat format) {
  return format == WireFormat::kInt8B32 || format == WireFormat::kInt8B128 || format == WireFormat::kInt8B256;
}

// Inputs and outputs of the kernels.
struct Buffers {
  explicit Buffers(int64_t bytes) : floats(bytes), other(bytes), messages(bytes), message(bytes), n(bytes / 4) {
    std::vector<float> host(static_cast<size_t>(n));
    uint32_t random = 1;
    for (float& x : host) {
      random = random * 1664525U + 1013904223U;
      x = (static_cast<float>(random >> 8) * 0x1p-24F - 0.5F) * 1e-3F;
    }
    check_cuda(cudaMemcpy(floats.data(), host.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
               "cudaMemcpy");
  }

  DeviceMemory floats;
  DeviceMemory other;
  DeviceMemory messages;  // The messages of all ranks, one after another.
  DeviceMemory message;
  int64_t n;  // float32 numbers.
};

// Elements of each rank's message: as many as fit the buffer with `ranks` messages, but no more than there are floats.
// A multiple of the grain at which every format can be cut.
int64_t elements_of_average(const Buffers& b, WireFormat format, int64_t ranks) {
  constexpr int64_t kGrain = 4096;
  const double bytes_per_element = static_cast<double>(encoded_size(kGrain, format)) / kGrain;
  const auto in_messages = static_cast<int64_t>(static_cast<double>(b.messages.size()) / bytes_per_element) / ranks;
  return std::min(in_messages, b.n) / kGrain * kGrain;
}

Work average_of(const Buffers& b, WireFormat format, const Average& average) {
  const int64_t ranks = average.ranks;
  const int64_t n = elements_of_average(b, format, ranks);
  const int64_t message_bytes = encoded_size(n, format);
  cuda::AverageEncodeArguments arguments{.message = b.message.data()};
  arguments.parts.n = n;
  std::vector<const uint8_t*> messages;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    uint8_t* const message = b.messages.data() + rank * message_bytes;
    cuda::wire_encode(format, {.x = b.floats.data(), .n = n, .message = message}, nullptr);
    messages.push_back(message);
  }
  cuda::place_messages(messages, arguments.parts);
  return {"average of " + std::to_string(ranks), static_cast<double>((ranks + 1) * message_bytes),
          [=] { cuda::wire_average_encode(format, arguments, nullptr); }, is_int8(format) ? average.target_of_int8 : 0};
}

Work copy(const Buffers& b) { return device_copy(b.other.data(), b.floats.data(), b.floats.size()); }

// All kernels except averages.
std::vector<Work> kernels_of(const Buffers& b, WireFormat format) {
  const auto encoded = static_cast<double>(encoded_size(b.n, format));
  const auto plain = static_cast<double>(b.floats.size());
  const cuda::EncodeArguments nearest{.x = b.floats.data(), .n = b.n, .message = b.message.data()};
  cuda::EncodeArguments random = nearest;
  random.rounding = {true, 1, 2, 0};
  const cuda::DecodeArguments decode{.message = b.message.data(), .n = b.n, .out = b.other.data()};
  return {copy(b),
          {"encode", plain + encoded, [=] { cuda::wire_encode(format, nearest, nullptr); }, kEncodeTarget},
          {"encode, rounding at random", plain + encoded, [=] { cuda::wire_encode(format, random, nullptr); }},
          {"decode", plain + encoded, [=] { cuda::wire_decode(format, decode, nullptr); }, kDecodeTarget}};
}

// The kernels of a variable-width format, which have no targets. Messages are summed into float32, and a separate
// kernel encodes the mean: the widths of all blocks must be known first.
bool measure_variable(const Buffers& b, WireFormat format) {
  const std::string name(to_string(format));
  const auto plain = static_cast<double>(b.floats.size());
  const auto encoded = static_cast<double>(encoded_size(b.n, format));
  const DeviceMemory encode_scratch(cuda::variable_encode_scratch(b.n));
  const cuda::VariableEncodeArguments nearest{.bits_per_element = static_cast<int>(codec::wire::code_bits(format)),
                                              .x = b.floats.data(),
                                              .n = b.n,
                                              .message = b.message.data(),
                                              .scratch = encode_scratch.data()};
  cuda::VariableEncodeArguments random = nearest;
  random.rounding = {true, 1, 2, 0};
  bool met =
      measure(name, {copy(b),
                     {"encode", plain + encoded, [=] { cuda::variable_encode(nearest, nullptr); }},
                     {"encode, rounding at random", plain + encoded, [=] { cuda::variable_encode(random, nullptr); }}});
  for (const int64_t ranks : {1, 2, 4, 8, 16}) {
    const int64_t n = elements_of_average(b, format, ranks);
    const int64_t message_bytes = encoded_size(n, format);
    const DeviceMemory scratch(cuda::variable_average_scratch(n, ranks));
    cuda::VariableAverageArguments arguments{
        .bits_per_element = nearest.bits_per_element, .mean = b.other.data(), .scratch = scratch.data()};
    arguments.parts.n = n;
    std::vector<const uint8_t*> messages;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      messages.push_back(b.messages.data() + rank * message_bytes);
      cuda::VariableEncodeArguments encode = nearest;
      encode.n = n;
      encode.message = b.messages.data() + rank * message_bytes;
      cuda::variable_encode(encode, nullptr);
    }
    cuda::place_messages(messages, arguments.parts);
    const std::string what = ranks == 1 ? "decode" : "mean of " + std::to_string(ranks) + ", in float32";
    met = measure(name, {copy(b),
                         {what, static_cast<double>(ranks * message_bytes + 4 * n),
                          [=] { cuda::variable_average(arguments, nullptr); }}}) &&
          met;
  }
  return met;
}

bool measure_all() {
  const Buffers b(absl::GetFlag(FLAGS_mebibytes) << 20);
  bool met = true;
  for (const WireFormat format : kWireFormats) {
    if (codec::wire::is_sparse(format)) continue;  // For outer steps, which are rare.
    if (codec::wire::is_variable(format)) {
      met = measure_variable(b, format) && met;
      continue;
    }
    const std::string name(to_string(format));
    met = measure(name, kernels_of(b, format)) && met;
    for (const Average& average : kAverages) {  // One after another: their messages share a buffer.
      met = measure(name + ": decode, sum and encode", {copy(b), average_of(b, format, average)}) && met;
    }
  }
  return met;
}

}  // namespace
}  // namespace narrowcast::bench

int main(int argc, char** argv) {
  return narrowcast::bench::run_gpu_bench("narrowcast_cuda_wire_bench",
                                          "Times the kernels of every wire format on a GPU and checks the targets.",
                                          argc, argv, narrowcast::bench::measure_all);
}
