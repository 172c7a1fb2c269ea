// Combines environments of workers.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include <narrowcast/worker_env.h>
#include "tests/support/error_message.h"

namespace narrowcast {

// The union of both; a value of `more` takes precedence.
inline EnvironmentVariables operator+(EnvironmentVariables variables, const EnvironmentVariables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

inline std::string error_of(const EnvironmentVariables& variables, const WorkerFlags& flags = {}) {
  return testing::error_message<c10::ValueError>([&] { WorkerEnv::from_variables(variables, flags); });
}

}  // namespace narrowcast
