#include "trainer/launcher/group/hosted_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/listening_sockets.h"
#include "tests/support/loopback_socket.h"
#include "trainer/base/job_keys.h"

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;

c10::intrusive_ptr<c10d::TCPStore> connect(const network::ListeningSocket& socket) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(socket.port());
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

TEST(HostedStore, ListensOnItsAddressAlone) {
  const network::ListeningSocket socket = testing::loopback_socket();
  const HostedStore store("127.0.0.1", socket);
  EXPECT_THAT(testing::listening_addresses(), ElementsAre("127.0.0.1"));
}

TEST(HostedStore, ServesOthers) {
  const network::ListeningSocket socket = testing::loopback_socket();
  const HostedStore store("127.0.0.1", socket);
  const auto client = connect(socket);
  client->set("key", bytes("value"));
  EXPECT_EQ(store.store()->get("key"), bytes("value"));
}

TEST(HostedStore, ForgetsWorkersKeysAlone) {
  const network::ListeningSocket socket = testing::loopback_socket();
  HostedStore store("127.0.0.1", socket);
  const auto client = connect(socket);
  client->set("worker", bytes("address of a process that is gone"));
  client->add("init/", 2);
  client->set(kLauncherKeys + std::string("decision"), bytes("kept"));
  store.forget_workers();
  EXPECT_THAT(client->listKeys(), ElementsAre(kLauncherKeys + std::string("decision")));
}

TEST(HostedStore, TellsRanksWhoHasEnded) {
  const network::ListeningSocket socket = testing::loopback_socket();
  HostedStore store("127.0.0.1", socket);
  tell_ended_rank(*store.store(), "job7", 3);
  c10d::PrefixStore seen_by_ranks(rendezvous::job_prefix("job7"), connect(socket));
  EXPECT_TRUE(seen_by_ranks.check({rendezvous::kEndedRank}));
  EXPECT_EQ(seen_by_ranks.get(rendezvous::kEndedRank), bytes("3"));
  store.forget_workers();
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::kEndedRank}));
}

TEST(HostedStore, SaysThatItsAddressCannotBeReached) {
  network::ListeningSocket socket = testing::loopback_socket();
  // A socket at another address than the one that is named: nobody listens there.
  const std::string message = testing::error_message<c10::ValueError>([&] { HostedStore("127.0.0.2", socket); });
  EXPECT_EQ(message, c10::str("the job's store would be served at 127.0.0.2:", socket.port(),
                              ", but this machine cannot reach itself there: Connection refused"));
}

// Descriptors of this process that a program it starts would inherit.
std::set<int> inheritable_descriptors() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) {
      found.insert(fd);
    }
  }
  return found;
}

TEST(HostedStore, GivesNoDescriptorToPrograms) {
  const std::set<int> before = inheritable_descriptors();
  const network::ListeningSocket socket = testing::loopback_socket();
  const HostedStore store("127.0.0.1", socket);
  const auto client = connect(socket);
  client->set("key", bytes("value"));
  EXPECT_EQ(inheritable_descriptors(), before);
}

}  // namespace
}  // namespace narrowcast::launcher
