#include "tests/bench/cuda/gpu_bench.h"

#include <absl/flags/flag.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <utility>

#include "trainer/base/program/command_line.h"

// The size makes the lines that a kernel leaves in the cache a negligible part of its writes.
ABSL_FLAG(int64_t, mebibytes, 2048, "MiB of float32 that a kernel reads or writes");
ABSL_FLAG(int64_t, rounds, 21, "measured turns of each, after two to warm up");

namespace narrowcast::bench {
namespace {

constexpr int kNoGpu = 3;

bool report(const Work& work, double copy_rate) {
  const double part = work.rate() / copy_rate;
  const bool met = part >= work.target;
  std::printf("  %-44s %7.0f GB/s %6.1f%% of the copy", work.name.c_str(), work.rate() * 1e-9, 100 * part);
  if (work.target > 0) std::printf("  %s: %.0f%% wanted", met ? "PASS" : "FAIL", 100 * work.target);
  std::printf("\n");
  return met;
}

program::Description description(const std::string& name, const std::string& summary) {
  program::Description description;
  description.name = name;
  description.version = "0";
  description.summary = summary;
  description.usage = name + " [flags]";
  description.groups = {{"Workload", {"mebibytes", "rounds"}}};
  description.examples = {{"on a GPU with little memory", name + " --mebibytes=128"}};
  description.exit_codes = {{0, "every target was met"}, {1, "a target was missed"}, {kNoGpu, "there is no GPU"}};
  return description;
}

// Raises c10::ValueError if the flags leave nothing to measure.
void check_flags() {
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"mebibytes", absl::GetFlag(FLAGS_mebibytes)},
                                    std::pair<const char*, int64_t>{"rounds", absl::GetFlag(FLAGS_rounds)}}) {
    TORCH_CHECK_VALUE(value >= 1, "--", name, " must be at least 1, not ", value);
  }
}

int run(const std::string& name, const std::function<bool()>& body) {
  check_flags();
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "%s: no GPU to measure: %s\n", name.c_str(), cudaGetErrorString(error));
    return kNoGpu;
  }
  cudaDeviceProp device = {};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s; bytes read and written\n", device.name);
  return body() ? 0 : 1;
}

}  // namespace

Work device_copy(void* to, const void* from, int64_t bytes) {
  return {"copy", static_cast<double>(2 * bytes), [=] {
            check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, nullptr),
                       "cudaMemcpyAsync");
          }};
}

bool measure(const std::string& title, std::vector<Work> all) {
  take_turns(all, absl::GetFlag(FLAGS_rounds));
  std::printf("%s\n", title.c_str());
  bool met = true;
  for (const Work& work : all) met = report(work, all.front().rate()) && met;
  return met;
}

int run_gpu_bench(const std::string& name, const std::string& summary, int argc, char** argv,
                  const std::function<bool()>& body) {
  return program::run_main(description(name, summary), argc, argv, [&](const auto&) { return run(name, body); });
}

}  // namespace narrowcast::bench
