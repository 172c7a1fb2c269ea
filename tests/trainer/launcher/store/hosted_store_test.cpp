#include "trainer/launcher/store/hosted_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;

c10::intrusive_ptr<c10d::TCPStore> connect(const ListeningSocket& socket) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(socket.port());
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

// The local addresses, in the kernel's hexadecimal, at which this machine listens on `port` by TCP.
std::set<std::string> listening_addresses(int64_t port) {
  std::ostringstream hexadecimal;
  hexadecimal << std::hex << std::uppercase << port;
  std::set<std::string> addresses;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::string number, local, remote, state;
      std::istringstream(line) >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      const std::string stripped = colon == std::string::npos ? "" : local.substr(colon + 1);
      if (state == "0A" && std::stoll("0" + stripped, nullptr, 16) == port) {
        addresses.insert(local.substr(0, colon));
      }
    }
  }
  return addresses;
}

TEST(HostedStore, ListensOnItsAddressAlone) {
  const ListeningSocket socket("127.0.0.1", 0, {});
  const HostedStore store("127.0.0.1", socket);
  EXPECT_THAT(listening_addresses(socket.port()), ElementsAre("0100007F"));  // 127.0.0.1, not 00000000
}

TEST(HostedStore, ServesOthers) {
  const ListeningSocket socket("127.0.0.1", 0, {});
  const HostedStore store("127.0.0.1", socket);
  const auto client = connect(socket);
  client->set("key", bytes("value"));
  EXPECT_EQ(store.store()->get("key"), bytes("value"));
}

TEST(HostedStore, ForgetsWorkersKeysAlone) {
  const ListeningSocket socket("127.0.0.1", 0, {});
  HostedStore store("127.0.0.1", socket);
  const auto client = connect(socket);
  client->set("worker", bytes("address of a process that is gone"));
  client->add("init/", 2);
  client->set(kLauncherKeys + std::string("decision"), bytes("kept"));
  store.forget_workers();
  EXPECT_THAT(client->listKeys(), ElementsAre(kLauncherKeys + std::string("decision")));
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
  const ListeningSocket socket("127.0.0.1", 0, {});
  const HostedStore store("127.0.0.1", socket);
  const auto client = connect(socket);
  client->set("key", bytes("value"));
  EXPECT_EQ(inheritable_descriptors(), before);
}

}  // namespace
}  // namespace narrowcast::launcher
