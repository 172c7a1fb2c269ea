#include "trainer/ddp/process_group/backends.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/env.h>

#include <set>

namespace narrowcast::nccl {
namespace {

constexpr const char* kQuarterOfEnd = "500";  // ms
constexpr int kLeastMajor = 8;                // cmake/NarrowcastCuda.cmake compiles for nothing older.

bool some_share(const std::vector<std::string>& gpus) {
  return std::set<std::string>(gpus.begin(), gpus.end()).size() < gpus.size();
}

}  // namespace

EnvironmentVariables environment_for(const Place& place) {
  EnvironmentVariables variables = {{"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
                                    {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", kQuarterOfEnd}};
  if (!place.interface.empty()) {
    variables["NCCL_SOCKET_IFNAME"] = c10::str("=", place.interface);  // Else any whose name begins so.
  }
  if (some_share(place.gpus)) {
    variables["NCCL_HOSTID"] = c10::str("narrowcast-rank-", place.rank);
    variables["NCCL_NET"] = "Socket";
  }
  return variables;
}

void check_capability(const Gpu& gpu) {
  TORCH_CHECK_VALUE(gpu.major >= kLeastMajor, "backend 'nccl' needs a GPU of compute capability ", kLeastMajor,
                    ".0 or above, but GPU ", gpu.number, ", ", gpu.name, ", has ", gpu.major, ".", gpu.minor);
}

void set_where_missing(const EnvironmentVariables& variables) {
  const EnvironmentVariables given = process_environment();
  for (const auto& [name, value] : variables) {
    if (text_or_empty(given, name).empty()) {
      c10::utils::set_env(name.c_str(), value.c_str());  // LibTorch's threads may read the environment meanwhile.
    }
  }
}

}  // namespace narrowcast::nccl
