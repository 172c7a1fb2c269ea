#include "tests/support/nccl/nccl_ranks.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "tests/support/spawned_ranks.h"

namespace narrowcast::testing {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

using Variables = std::map<std::string, std::string>;

Variables variables_of_peers() {
  return {{"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_P2P_LEVEL", "SYS"},                      // However far apart the GPUs are.
          {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0"}};  // Wait after a time-out; the default is a minute.
}

Variables variables_of(int64_t rank) {
  Variables variables = variables_of_peers();
  variables.erase("NCCL_P2P_LEVEL");
  variables.merge(Variables{{"NCCL_HOSTID", "rank" + std::to_string(rank)}, {"NCCL_NET", "Socket"}});
  return variables;
}

void add_nccl_backend(const Group& group, const RanksOptions& options) {
  const auto gpu = static_cast<c10::DeviceIndex>(group->getRank() % c10::cuda::device_count());
  c10::cuda::set_device(gpu);
  auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", group->getStore()),
                                                  group->getRank(), group->getSize(), nccl_options);
  group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
  backend->setBoundDeviceId(c10::Device(c10::DeviceType::CUDA, gpu));  // setBackend replaced it by the group's, unset.
}

std::vector<int> spawn(int64_t world_size, const RankBody& body, const RanksOptions& options,
                       const std::function<Variables(int64_t rank)>& variables) {
  const auto with_nccl = [&](int64_t rank, const Group& group) {
    add_nccl_backend(group, options);
    body(rank, group);
    c10::cuda::device_synchronize();
    group->getBackend(c10::DeviceType::CUDA)->shutdown();
  };
  return spawn_ranks(world_size, with_nccl, options, variables);
}

}  // namespace

std::string why_no_nccl_ranks() { return c10::cuda::device_count() > 0 ? "" : "no GPU"; }

std::string why_no_peer_ranks(int64_t world_size) {
  const int64_t gpus = c10::cuda::device_count();
  if (gpus < world_size) {
    return std::to_string(world_size) + " GPUs are needed, and this process can use " + std::to_string(gpus);
  }
  for (int gpu = 0; gpu < world_size; ++gpu) {
    for (int peer = 0; peer < world_size; ++peer) {
      int can_access = 1;
      if (peer != gpu) C10_CUDA_CHECK(cudaDeviceCanAccessPeer(&can_access, gpu, peer));
      if (can_access == 0) {
        return "GPU " + std::to_string(gpu) + " cannot use the memory of GPU " + std::to_string(peer);
      }
    }
  }
  return "";
}

std::vector<int> spawn_nccl_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options) {
  return spawn(world_size, body, options, variables_of);
}

std::vector<int> spawn_peer_ranks(int64_t world_size, const RankBody& body, const RanksOptions& options) {
  return spawn(world_size, body, options, [](int64_t) { return variables_of_peers(); });
}

std::function<void()> recorded_as_graph(const std::function<void()>& body) {
  c10::cuda::device_synchronize();
  auto graph = std::make_shared<at::cuda::CUDAGraph>();
  graph->capture_begin();
  body();
  graph->capture_end();
  return [graph] { graph->replay(); };
}

}  // namespace narrowcast::testing
