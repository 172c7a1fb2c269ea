#include "trainer/ddp/backends/nccl_environment.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/env.h>

#include <set>

namespace narrowcast::nccl {
namespace {

constexpr const char* kQuarterOfEnd = "500";  // ms
constexpr const char* kErrorHandling = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
constexpr const char* kCleanUpOnly = "2";  // ErrorHandlingMode of ProcessGroupNCCL.hpp
constexpr const char* kOfTorchrun = "1";   // the value that torchrun sets if the variable is not set
constexpr int kLeastMajor = 8;             // cmake/NarrowcastCuda.cmake compiles for nothing older.

bool some_share(const std::vector<std::string>& gpus) {
  return std::set<std::string>(gpus.begin(), gpus.end()).size() < gpus.size();
}

}  // namespace

EnvironmentVariables environment_for(const Place& place) {
  EnvironmentVariables variables = {{kErrorHandling, kCleanUpOnly},
                                    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
                                    {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", kQuarterOfEnd}};
  if (!place.interface.empty()) {
    variables["NCCL_SOCKET_IFNAME"] = c10::str("=", place.interface);  // "=": not as a prefix.
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

void check_error_handling(const EnvironmentVariables& given) {
  const std::string value = text_or_empty(given, kErrorHandling);
  const bool is_torchruns = value == kOfTorchrun && !text_or_empty(given, "TORCHELASTIC_RUN_ID").empty();
  TORCH_CHECK_VALUE(
      value.empty() || value == kCleanUpOnly || is_torchruns, kErrorHandling, "='", value,
      "': LibTorch would end this process by a signal, or not at all, when another rank is lost; unset it, ",
      "or set it to ", kCleanUpOnly);
}

void set_where_missing(const EnvironmentVariables& variables) {
  const EnvironmentVariables given = process_environment();
  for (const auto& [name, value] : variables) {
    if (text_or_empty(given, name).empty() || name == kErrorHandling) {
      c10::utils::set_env(name.c_str(), value.c_str());  // LibTorch's threads may read the environment meanwhile.
    }
  }
}

}  // namespace narrowcast::nccl
