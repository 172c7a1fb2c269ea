// The kernels of the wire formats on a GPU: bytes moved per second, as a part of
// what a device-to-device copy moves in the same run. Exit code 1 if a target is
// missed, 3 where there is no GPU.
#include <absl/flags/flag.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "ops/cuda/wire/wire_kernels.h"
#include "ops/wire_format.h"
#include "tests/bench/device_timer.h"
#include "trainer/program/command_line.h"

ABSL_FLAG(int64_t, mebibytes, 512, "float32 that a kernel reads or writes; of an average: messages of all ranks");
ABSL_FLAG(int64_t, rounds, 21, "measured turns of each kernel, after two to warm up");

namespace narrowcast::bench {
namespace {

constexpr int kNoGpu = 3;
constexpr int64_t kRanks[] = {2, 4, 8, 16};
// Parts of the copy's rate that kernels must reach when they round to nearest.
constexpr double kEncodeTarget = 0.90;
constexpr double kAverageTarget = 0.85;

// What the kernels read and write.
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
  DeviceMemory messages;  // Of all ranks, one behind the other.
  DeviceMemory message;
  int64_t n;  // float32 numbers.
};

// Elements of each rank's message if `ranks` of them fill the buffer, or the floats do not last; a multiple of what
// every format can be cut at.
int64_t elements_of_average(const Buffers& b, WireFormat format, int64_t ranks) {
  constexpr int64_t kGrain = 4096;
  const double bytes_per_element = static_cast<double>(encoded_size(kGrain, format)) / kGrain;
  const auto in_messages = static_cast<int64_t>(static_cast<double>(b.messages.size()) / bytes_per_element) / ranks;
  return std::min(in_messages, b.n) / kGrain * kGrain;
}

Work average_of(const Buffers& b, WireFormat format, int64_t ranks) {
  const int64_t n = elements_of_average(b, format, ranks);
  const int64_t message_bytes = encoded_size(n, format);
  cuda::AverageEncodeArguments arguments{.message = b.message.data()};
  arguments.parts.ranks = ranks;
  arguments.parts.own_rank = ranks;
  arguments.parts.n = n;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    uint8_t* const message = b.messages.data() + rank * message_bytes;
    cuda::wire_encode(format, {.x = b.floats.data(), .n = n, .message = message}, nullptr);
    arguments.parts.messages[rank] = message;
  }
  return {"average of " + std::to_string(ranks), static_cast<double>((ranks + 1) * message_bytes),
          [=] { cuda::wire_average_encode(format, arguments, nullptr); }};
}

Work copy(const Buffers& b) {
  return {"copy", static_cast<double>(2 * b.floats.size()), [&] {
            check_cuda(cudaMemcpyAsync(b.other.data(), b.floats.data(), static_cast<size_t>(b.floats.size()),
                                       cudaMemcpyDeviceToDevice, nullptr),
                       "cudaMemcpyAsync");
          }};
}

std::vector<Work> kernels_of(const Buffers& b, WireFormat format) {
  const auto encoded = static_cast<double>(encoded_size(b.n, format));
  const auto plain = static_cast<double>(b.floats.size());
  const cuda::EncodeArguments nearest{.x = b.floats.data(), .n = b.n, .message = b.message.data()};
  cuda::EncodeArguments random = nearest;
  random.rounding = {true, 1, 2, 0};
  const cuda::DecodeArguments decode{.message = b.message.data(), .n = b.n, .out = b.other.data()};
  return {copy(b),
          {"encode", plain + encoded, [=] { cuda::wire_encode(format, nearest, nullptr); }},
          {"at random", plain + encoded, [=] { cuda::wire_encode(format, random, nullptr); }},
          {"decode", plain + encoded, [=] { cuda::wire_decode(format, decode, nullptr); }},
          {"accumulate", 2 * plain + encoded, [=] { cuda::wire_decode_accumulate(format, decode, nullptr); }}};
}

// The rates of all but the first, the copy, as parts of its rate. Prints a row; false if one that has a target misses
// it.
bool report(const std::string& name, const std::vector<Work>& all) {
  std::printf("  %-13s %8.0f", name.c_str(), all.front().rate() * 1e-9);
  bool met = true;
  for (auto work = all.begin() + 1; work != all.end(); ++work) {
    const double part = work->rate() / all.front().rate();
    const double target = work->name == "encode"                ? kEncodeTarget
                          : work->name.rfind("average", 0) == 0 ? kAverageTarget
                                                                : 0;
    std::printf(" %9.1f%%%s", 100 * part, part < target ? " FAIL" : "     ");
    met = met && part >= target;
  }
  std::printf("\n");
  return met;
}

bool measure(const Buffers& b, const char* title, std::vector<Work> (*work_of)(const Buffers&, WireFormat)) {
  std::printf("%s\n", title);
  bool met = true;
  for (const WireFormat format : kWireFormats) {
    std::vector<Work> all = work_of(b, format);
    take_turns(all, absl::GetFlag(FLAGS_rounds));
    met = report(std::string(to_string(format)), all) && met;
  }
  return met;
}

bool measure_averages(const Buffers& b) {
  std::printf("decode, sum and encode: %.0f%% of the copy's rate wanted\n", 100 * kAverageTarget);
  bool met = true;
  for (const WireFormat format : kWireFormats) {
    for (const int64_t ranks : kRanks) {  // One after the other: their messages share a buffer.
      std::vector<Work> all{copy(b), average_of(b, format, ranks)};
      take_turns(all, absl::GetFlag(FLAGS_rounds));
      met = report(std::string(to_string(format)) + " " + std::to_string(ranks), all) && met;
    }
  }
  return met;
}

int run() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "narrowcast_cuda_wire_bench: no GPU to measure: %s\n", cudaGetErrorString(error));
    return kNoGpu;
  }
  cudaDeviceProp device = {};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s; copy in GB/s, reads and writes; the rest as a part of it\n", device.name);
  const Buffers buffers(absl::GetFlag(FLAGS_mebibytes) << 20);
  const bool encodes =
      measure(buffers, "  format             copy     encode      at random      decode      accumulate", kernels_of);
  const bool averages = measure_averages(buffers);
  return encodes && averages ? 0 : 1;
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_cuda_wire_bench";
  description.version = "0";
  description.summary = "Times the kernels of every wire format on a GPU and checks the targets.";
  description.usage = "narrowcast_cuda_wire_bench [flags]";
  description.groups = {{"Workload", {"mebibytes", "rounds"}}};
  description.examples = {{"on a GPU with little memory", "narrowcast_cuda_wire_bench --mebibytes=128"}};
  description.exit_codes = {{0, "every target was met"}, {1, "a target was missed"}, {kNoGpu, "there is no GPU"}};
  return description;
}

}  // namespace
}  // namespace narrowcast::bench

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::bench::description(), argc, argv,
                                       [](const auto&) { return narrowcast::bench::run(); });
}
