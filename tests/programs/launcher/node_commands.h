// Launchers of several nodes, as processes on this machine.
#pragma once

#include <chrono>
#include <string>

#include "tests/programs/launcher/run_commands.h"
#include "tests/support/loopback_socket.h"

namespace narrowcast::testing {

class NarrowcastRunNodesFixture : public NarrowcastRunFixture {
 protected:
  // narrowcast-run with the flags `place` and `flags`, and workers that run `script`.
  static Words launcher(const Words& place, const std::string& script, const Words& flags) {
    Words words = {kRun};
    words.insert(words.end(), place.begin(), place.end());
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"sh", "-c", script});
    return words;
  }

  // A lost node is noticed after 4 seconds: earlier than by default, but later than a launcher on a busy machine may
  // have to wait for a processor.
  static constexpr std::chrono::seconds kSilence{4};
  static Words quick() { return {"--rdzv_conf=keep_alive_interval=0.1,keep_alive_max_attempt=40,heartbeat_timeout=4"}; }

  const std::string port = std::to_string(free_port());
};

}  // namespace narrowcast::testing
