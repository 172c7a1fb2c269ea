#include "tests/support/nccl/nccl_ranks.h"

#include <c10/cuda/CUDAFunctions.h>

#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "tests/support/spawned_ranks.h"

namespace narrowcast::testing {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

std::map<std::string, std::string> variables_of(int64_t rank) {
  return {{"NCCL_HOSTID", "rank" + std::to_string(rank)},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_NET", "Socket"},
          {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0"}};  // After a time-out. By itself it waits for a minute.
}

void add_nccl_backend(const Group& group, const RanksOptions& options) {
  const auto gpu = static_cast<c10::DeviceIndex>(group->getRank() % c10::cuda::device_count());
  c10::cuda::set_device(gpu);
  auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", group->getStore()),
                                                  group->getRank(), group->getSize(), nccl_options);
  backend->setBoundDeviceId(c10::Device(c10::DeviceType::CUDA, gpu));
  group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, std::move(backend));
}

}  // namespace

std::string why_no_nccl_ranks() { return c10::cuda::device_count() > 0 ? "" : "no GPU"; }

std::vector<int> spawn_nccl_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options) {
  const auto with_nccl = [&](int64_t rank, const Group& group) {
    add_nccl_backend(group, options);
    body(rank, group);
    c10::cuda::device_synchronize();
    group->getBackend(c10::DeviceType::CUDA)->shutdown();
  };
  return spawn_ranks(world_size, with_nccl, options, variables_of);
}

}  // namespace narrowcast::testing
