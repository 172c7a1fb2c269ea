#include <narrowcast/worker_env.h>

#include <unistd.h>

namespace narrowcast {

EnvironmentVariables process_environment() {
  EnvironmentVariables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

std::string text_or_empty(const EnvironmentVariables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

std::string worker_error_file() { return text_or_empty(process_environment(), "TORCHELASTIC_ERROR_FILE"); }

SessionEnv SessionEnv::from_environment() { return from_variables(process_environment()); }

SessionEnv SessionEnv::from_variables(const EnvironmentVariables& variables) {
  SessionEnv env;
  env.no_color = !text_or_empty(variables, "NO_COLOR").empty();
  env.omp_num_threads_set = !text_or_empty(variables, "OMP_NUM_THREADS").empty();
  env.term = text_or_empty(variables, "TERM");
  env.cache_home = text_or_empty(variables, "XDG_CACHE_HOME");
  const std::string home = text_or_empty(variables, "HOME");
  if (env.cache_home.empty() && !home.empty()) {
    env.cache_home = std::filesystem::path(home) / ".cache";
  }
  return env;
}

}  // namespace narrowcast
