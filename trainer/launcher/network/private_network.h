// A private network for a job, with only a loopback interface. Other processes of the machine, even of the same user,
// cannot reach its store and its ranks.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/worker_env.h>

namespace narrowcast::launcher {

// Whether a job on one node gets a private network.
enum class Isolation {
  kAuto,  // if it is possible and no flag or variable selects another network
  kOn,
  kOff
};

// Parses "auto", "on" or "off". Throws c10::ValueError naming `flag` and `text` for anything else.
Isolation parse_isolation(const std::string& flag, std::string_view text);

// Returns whether a job with this command needs no other network. Its program must be one of ours, in `own_folder`, and
// neither its arguments nor `environment` may name an interface. An argument that reads flags from elsewhere counts as
// naming one.
bool does_without_network(const std::vector<std::string>& command, const EnvironmentVariables& environment,
                          const std::filesystem::path& own_folder);

// Moves this process, and processes that it starts from now on, into a private network, and returns an empty text.
// Otherwise returns the system's reason and changes nothing, because a child process tries all steps first.
//
// A user who is not root keeps the user id within a user namespace (user_namespaces(7)). Programs that change the user,
// such as sudo, do not work in it. Must be called while there is one thread.
std::string enter_private_network();

}  // namespace narrowcast::launcher
