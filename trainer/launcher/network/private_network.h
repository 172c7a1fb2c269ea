// A network of the job's own, which has a loopback interface and nothing else: its store and its ranks are out of reach
// for all other processes of the machine, those of the same user included.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/worker_env.h>

namespace narrowcast::launcher {

// Whether a job on one node gets a network of its own.
enum class Isolation {
  kAuto,  // where that is possible and nothing asks for another network
  kOn,
  kOff
};

// "auto", "on", "off". Throws c10::ValueError naming `flag` and `text` for anything else.
Isolation parse_isolation(const std::string& flag, std::string_view text);

// Whether a job with this command does without the network: one of our own programs, of `own_folder`, where neither its
// arguments nor `environment` name an interface. Arguments may also be in a file of flags.
bool does_without_network(const std::vector<std::string>& command, const EnvironmentVariables& environment,
                          const std::filesystem::path& own_folder);

// Gives this process, and those that it starts from now on, such a network, and returns nothing; or why it cannot have
// one, in the system's words, and then nothing has changed: a child process tries it first. Who is not root is still
// himself then, but in a user namespace (user_namespaces(7)): programs that change the user, as sudo does, do not work
// in it. To be called while there is one thread.
std::string enter_private_network();

}  // namespace narrowcast::launcher
