#include "trainer/train/flags/worker_flags.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdint>

namespace narrowcast {
namespace {

// A launcher with a run id may restart the job with more processes, all with this command line.
void check_interface_is_used(const WorkerEnv& env, const std::string& interface) {
  TORCH_CHECK_VALUE(env.world_size > 1 || !env.run_id.empty(), "--interface=", interface,
                    ": has no effect in a single process");
}

int64_t seconds_of(std::chrono::milliseconds time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

void check_patience(const program::CommandLine& line, const ProcessGroupOptions& group) {
  const int64_t timeout = seconds_of(group.timeout);
  const int64_t silence = seconds_of(group.silence);
  TORCH_CHECK_VALUE(silence == 0 || silence >= 3, "--silence_seconds=", silence, ": must be 0 or at least 3");
  TORCH_CHECK_VALUE(!line.given("silence_seconds") || silence <= timeout, "--silence_seconds=", silence,
                    ": has no effect with --timeout_seconds=", timeout);
}

WorkerEnv read_worker_env(const options::WorkerPlace& place) {
  WorkerEnv env = WorkerEnv::from_environment(place.flags);
  if (place.interface.has_value()) {
    env.socket_interface = *place.interface;
    check_interface_is_used(env, env.socket_interface);
  }
  return env;
}

void check_file(const program::CommandLine& line, const std::string& flag, const std::string& value) {
  TORCH_CHECK_VALUE(!line.given(flag) || !value.empty(), "--", flag, ": must name a file");
}

}  // namespace narrowcast
