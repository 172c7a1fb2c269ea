#include "tests/support/gloo_group.h"

#include <csignal>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>  // Declares its class because the build defines USE_C10D_GLOO.

#include "ops/common/batch_scheduling.h"

namespace narrowcast::testing {

using c10d::ProcessGroup;
using c10d::ProcessGroupGloo;

namespace {

// LibTorch's flight recorder is one per process and records collectives in a map without a lock, so that it sometimes
// crashes with a rank per thread. It is switched off before its first use.
[[maybe_unused]] const int flight_recorder_off = ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);

}  // namespace

c10::intrusive_ptr<ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const GlooGroupOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // A dead peer is an error and must not end this process.
  const auto rank = static_cast<int>(options.rank);
  const auto world_size = static_cast<int>(options.world_size);
  auto gloo_options = ProcessGroupGloo::Options::create(options.timeout);
  {
    const BatchScheduling batch_scheduling;
    gloo_options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  }
  auto gloo = c10::make_intrusive<ProcessGroupGloo>(store, rank, world_size, std::move(gloo_options));
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, world_size);
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  group->setGroupName("test");
  return group;
}

}  // namespace narrowcast::testing
