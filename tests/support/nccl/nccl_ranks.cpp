#include "tests/support/nccl/nccl_ranks.h"

#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>
#include <filesystem>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace narrowcast::testing {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

void add_nccl_backend(const Group& group, const RanksOptions& options) {
  ::setenv("NCCL_HOSTID", ("rank" + std::to_string(group->getRank())).c_str(), /*overwrite=*/1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/1);
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

// Asking CUDA itself would keep forked processes from using it.
std::string why_no_nccl_ranks() { return std::filesystem::exists("/dev/nvidiactl") ? "" : "no GPU"; }

std::vector<int> fork_nccl_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options) {
  return fork_ranks(
      world_size,
      [&](int64_t rank, const Group& group) {
        add_nccl_backend(group, options);
        body(rank, group);
        c10::cuda::device_synchronize();
        group->getBackend(c10::DeviceType::CUDA)->shutdown();
      },
      options);
}

}  // namespace narrowcast::testing
