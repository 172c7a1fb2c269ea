#include "trainer/launcher/store/hosted_store.h"
#include "ops/common/file_descriptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/listening_sockets.h"
#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const std::string& address, int64_t port) {
  return testing::error_message<c10::ValueError>([&] { open_store_socket(address, port, {}); });
}

TEST(StoreSocket, TakesNamesAndNumbers) {
  for (const char* const address : {"127.0.0.1", "localhost", "::1"}) {
    EXPECT_GT(open_store_socket(address, 0, {}).port(), 0) << address;
  }
}

TEST(StoreSocket, RefusesAPortInUse) {
  const network::ListeningSocket other = open_store_socket("127.0.0.1", 0, {});
  EXPECT_EQ(refusal("127.0.0.1", other.port()),
            "--master_port=" + std::to_string(other.port()) + ": cannot be used: Address already in use");
}

TEST(StoreSocket, TellsAPortInUseFromOthersThatCannotBeUsed) {
  const network::ListeningSocket other = open_store_socket("127.0.0.1", 0, {});
  EXPECT_THROW(open_store_socket("127.0.0.1", other.port(), {}), PortInUseError);
  try {
    open_store_socket("192.0.2.1", 0, {});
    ADD_FAILURE() << "listens at another machine's address";
  } catch (const PortInUseError&) {
    ADD_FAILURE() << "the address is the trouble";
  } catch (const c10::ValueError&) {
    SUCCEED();
  }
}

TEST(StoreSocket, RefusesWhatIsNoPort) {
  EXPECT_EQ(refusal("127.0.0.1", 65536), "--master_port=65536: must be from 0 to 65535");
  EXPECT_EQ(refusal("127.0.0.1", -1), "--master_port=-1: must be from 0 to 65535");
}

TEST(StoreSocket, RefusesAddressesThatAreNotThisMachines) {
  // 192.0.2.0/24 is reserved for documentation (RFC 5737), so no machine has it.
  EXPECT_EQ(refusal("192.0.2.1", 0),
            "--master_addr=192.0.2.1: not an address of this machine, where the job's store is served");
  EXPECT_THAT(refusal("no such host", 0), StartsWith("--master_addr=no such host: "));
}

TEST(StoreSocket, RefusesToListenEverywhere) {
  EXPECT_THAT(refusal("0.0.0.0", 0), HasSubstr("--master_addr=0.0.0.0: means every address of this machine"));
  EXPECT_THAT(refusal("::", 0), HasSubstr("means every address of this machine"));
}

std::string try_once(const std::string& host, int64_t port, milliseconds left) {
  return try_to_reach(host, port, left);
}

TEST(Reach, FindsAListener) {
  const network::ListeningSocket socket = testing::loopback_socket();
  EXPECT_EQ(try_once("127.0.0.1", socket.port(), testing::kPatience), "");
  EXPECT_EQ(try_once("localhost", socket.port(), testing::kPatience), "");
}

TEST(Reach, SaysWhyThereIsNone) {
  const int64_t port = testing::free_port();
  EXPECT_EQ(try_once("127.0.0.1", port, testing::kPatience), "Connection refused");
  EXPECT_NE(try_once("no such host", port, testing::kPatience), "");
}

// A socket that connects to its own port would seem to have reached somebody, and keep the port for a minute.
TEST(Reach, NobodyIsReachedWhereNobodyListens) {
  // The kernel gives odd ports to sockets that listen, and even ones to those that connect. Few others use ::1.
  const int64_t port = testing::loopback_socket("::1").port() & ~int64_t{1};
  constexpr int64_t kAttempts = 30'000;  // about twice all even ports
  std::set<std::string> reasons;
  for (int64_t attempt = 0; attempt < kAttempts; ++attempt) {
    reasons.insert(try_once("::1", port, testing::kPatience));
  }
  EXPECT_THAT(reasons, ElementsAre("Connection refused"));
  EXPECT_EQ(open_store_socket("::1", port, {}).port(), port);
}

TEST(Reach, TakesTheTimeThatItNeededFromWhatIsLeft) {
  // A listener that accepts no connections: once its queue is full, connections wait.
  const FileDescriptor full(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(full.get(), place, length), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  ASSERT_EQ(getsockname(full.get(), place, &length), 0);
  std::vector<FileDescriptor> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connect(waiting.back().get(), place, length);
  }
  milliseconds left(50);
  EXPECT_EQ(try_to_reach("127.0.0.1", ntohs(address.sin_port), left), "Connection timed out");
  EXPECT_EQ(left, milliseconds(0));
  left = milliseconds(50);
  EXPECT_FALSE(reach_each("127.0.0.1", ntohs(address.sin_port), left).is_free) << "it may only be slow";
}

// A host may have several addresses. A refusal by one of them tells nothing about a slow listener at another.
TEST(Reach, TellsWhetherSurelyNobodyListens) {
  EXPECT_TRUE(nobody_listens({ECONNREFUSED}));
  EXPECT_TRUE(nobody_listens({ECONNREFUSED, ECONNREFUSED}));
  EXPECT_TRUE(nobody_listens({ENETUNREACH, ECONNREFUSED})) << "e.g. a machine without IPv6";
  EXPECT_FALSE(nobody_listens({ECONNREFUSED, ETIMEDOUT}));
  EXPECT_FALSE(nobody_listens({ETIMEDOUT, ECONNREFUSED}));
  EXPECT_FALSE(nobody_listens({EHOSTUNREACH}));
  EXPECT_FALSE(nobody_listens({}));
  milliseconds left = testing::kPatience;
  EXPECT_TRUE(reach_each("127.0.0.1", testing::free_port(), left).is_free);
  const network::ListeningSocket socket = testing::loopback_socket();
  EXPECT_FALSE(reach_each("127.0.0.1", socket.port(), left).is_free);
}

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

TEST(HostedStore, ForgetsLaunchersKeysAlone) {
  const network::ListeningSocket socket = testing::loopback_socket();
  HostedStore store("127.0.0.1", socket);
  const auto client = connect(socket);
  client->set("worker", bytes("kept"));
  client->set(kLauncherKeys + std::string("decision"), bytes("of a job that is gone"));
  client->set(kMovedKeys + std::string("job"), bytes("127.0.0.1:7"));
  client->add(kLauncherKeys + std::string("tickets"), 2);
  store.forget_launchers();
  EXPECT_THAT(client->listKeys(), ElementsAre("worker"));
}

TEST(EndpointStore, IsServedByOneOfTwo) {
  const int64_t port = testing::free_port();
  auto one = std::make_unique<EndpointStore>("127.0.0.1", port, EndpointFlags());
  EndpointStore other("127.0.0.1", port, {});
  EXPECT_EQ(one->served(), nullptr);
  const HostedStore* const served = one->serve().get();
  ASSERT_NE(served, nullptr);
  EXPECT_EQ(one->serve().get(), served);
  EXPECT_EQ(one->served().get(), served);
  EXPECT_EQ(other.serve(), nullptr);
  one.reset();
  EXPECT_NE(other.serve(), nullptr);
}

TEST(HostedStore, SaysThatItsAddressCannotBeReached) {
  network::ListeningSocket socket = testing::loopback_socket();
  // The socket has another address than the named one, where nothing listens.
  const std::string message = testing::error_message<c10::ValueError>([&] { HostedStore("127.0.0.2", socket); });
  EXPECT_EQ(message, c10::str("the job's store would be served at 127.0.0.2:", socket.port(),
                              ", but this machine cannot reach itself there: Connection refused"));
}

// Descriptors of this process that a child program would inherit.
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
