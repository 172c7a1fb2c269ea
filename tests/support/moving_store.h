// The store of a job that recovers in place on several nodes, and the file that tells the ranks where it is served.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <narrowcast/worker_env.h>
#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::testing {

// A key of the job's ranks.
inline std::string job_key(const std::string& name) { return rendezvous::job_prefix("run") + "/" + name; }

// A launcher's store at 127.0.0.1, with the values that it writes before ranks look.
inline network::TcpStorePtr serve_job(const network::ListeningSocket& socket, const std::string& places) {
  const network::TcpStorePtr store = network::serve_tcp_store("127.0.0.1", socket, kPatience);
  store->set(job_key(rendezvous::kStarts), std::vector<uint8_t>{'0'});
  store->set(job_key(rendezvous::kPlaces), std::vector<uint8_t>(places.begin(), places.end()));
  return store;
}

inline network::TcpStorePtr serve_job(const std::string& places) { return serve_job(loopback_socket(), places); }

// The file with the store's address.
class StoreFileOfTest {
 public:
  std::string path() const { return folder_ / "store"; }

  // As a launcher does: a reader sees the old file or the new one.
  void tell(int64_t port) const {
    const std::string next = folder_.write("next", "127.0.0.1:" + std::to_string(port) + "\n");
    std::filesystem::rename(next, path());
  }

  // A rank on a node with one rank, whose launcher gave it this port when it started.
  WorkerEnv env(int64_t node, int64_t port) const {
    WorkerEnv env;
    env.rank = node - 1;
    env.world_size = 3;
    env.master_addr = "127.0.0.1";
    env.master_port = port;
    env.use_agent_store = true;
    env.recovers_in_place = true;
    env.node = node;
    env.store_file = path();
    env.run_id = "run";
    return env;
  }

 private:
  TemporaryFolder folder_;
};

// A launcher that only serves the store, as a forked process. Use it in files whose suites need a fresh process.
class ForkedStore {
 public:
  explicit ForkedStore(const std::string& places) {
    const network::ListeningSocket socket = loopback_socket();
    port_ = socket.port();
    int ready[2] = {};
    if (::pipe2(ready, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
    std::fflush(nullptr);
    process_ = ::fork();
    if (process_ == 0) serve(socket, places, ready[1]);
    ::close(ready[1]);
    char byte = 0;
    const bool is_ready = process_ > 0 && ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
    if (!is_ready) throw std::runtime_error("the store's process does not serve");
  }
  ~ForkedStore() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ForkedStore(const ForkedStore&) = delete;
  ForkedStore& operator=(const ForkedStore&) = delete;

  int64_t port() const { return port_; }
  pid_t process() const { return process_; }

  // Returns when it hangs.
  void stop() const {
    ::kill(process_, SIGSTOP);
    wait_until_stopped();
  }
  void wait_until_stopped() const {
    while (::waitpid(process_, nullptr, WUNTRACED) < 0 && errno == EINTR) {
    }
  }

 private:
  [[noreturn]] static void serve(const network::ListeningSocket& socket, const std::string& places, int ready) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const network::TcpStorePtr store = serve_job(socket, places);
    const bool is_told = ::write(ready, "r", 1) == 1;
    while (is_told) ::pause();
    ::_exit(1);
  }

  int64_t port_ = 0;
  pid_t process_ = -1;
};

}  // namespace narrowcast::testing
