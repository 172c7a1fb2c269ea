#include "trainer/launcher/network/private_network.h"
#include "ops/common/file_descriptor.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "trainer/base/network/addresses.h"

namespace narrowcast::launcher {
namespace {

TEST(ParseIsolation, TakesItsThreeNames) {
  EXPECT_EQ(parse_isolation("--isolate", "auto"), Isolation::kAuto);
  EXPECT_EQ(parse_isolation("--isolate", "on"), Isolation::kOn);
  EXPECT_EQ(parse_isolation("--isolate", "off"), Isolation::kOff);
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { parse_isolation("--isolate", "yes"); }),
            "--isolate=yes: must be auto, on or off");
}

TEST(DoesWithoutNetwork, HoldsForOurOwnProgramsThatNameNoInterface) {
  const std::filesystem::path own = std::filesystem::temp_directory_path();
  const std::string train = own / "narrowcast-train";
  const auto holds = [&](const std::vector<std::string>& command, const EnvironmentVariables& environment = {}) {
    return does_without_network(command, environment, own);
  };
  EXPECT_TRUE(holds({train, "--hook=int8", "--steps", "5"}));
  EXPECT_TRUE(holds({own / "." / "narrowcast-bench"}));
  EXPECT_TRUE(holds({train, "--interfaces=7"})) << "no such flag";
  EXPECT_FALSE(holds({own / "my_trainer"}));
  EXPECT_FALSE(holds({"/narrowcast-train"})) << "another one";
  for (const char* const argument :
       {"--interface=eth0", "-interface", "--flagfile=flags.txt", "--master_addr=10.0.0.1", "--fromenv=interface"}) {
    EXPECT_FALSE(holds({train, "--hook=int8", argument})) << argument;
  }
  EXPECT_FALSE(holds({train}, {{"GLOO_SOCKET_IFNAME", "eth0"}}));
  EXPECT_FALSE(holds({train}, {{"NCCL_SOCKET_IFNAME", "eth0"}}));
  EXPECT_TRUE(holds({train}, {{"GLOO_SOCKET_IFNAME", ""}}));
}

sockaddr_in loopback_at(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Returns 0 or the errno of connecting.
int connect_to(uint16_t port) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = loopback_at(port);
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(socket.get(), any, sizeof(address)) == 0 ? 0 : errno;
}

// Listens on any port of the loopback, and stores it in `port`.
int listen_on_loopback(uint16_t& port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback_at(0);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket, any, length) != 0 || listen(socket, 1) != 0 || getsockname(socket, any, &length) != 0) return -1;
  port = ntohs(address.sin_port);
  return socket;
}

// Reads until the other side has closed the pipe.
template <class Value>
bool read_value(int pipe, Value& value) {
  return read(pipe, &value, sizeof(value)) == sizeof(value);
}

constexpr int kNoNetwork = 77;

// A process in another network listens, and can connect to itself. This process cannot.
TEST(PrivateNetwork, IsOutOfReachForOthers) {
  std::array<int, 2> to_parent{};
  std::array<int, 2> to_child{};
  ASSERT_EQ(pipe(to_parent.data()), 0);
  ASSERT_EQ(pipe(to_child.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(to_child[1]);
    if (!enter_private_network().empty()) _exit(kNoNetwork);
    uint16_t port = 0;
    const bool listens = listen_on_loopback(port) >= 0 && connect_to(port) == 0 && network::has_only_loopback();
    const bool is_told = write(to_parent[1], &port, sizeof(port)) == sizeof(port);
    char end = 0;
    read_value(to_child[0], end);
    _exit(listens && is_told ? 0 : 1);
  }
  close(to_parent[1]);  // The child's end.
  uint16_t port = 0;
  if (!read_value(to_parent[0], port)) {
    int status = -1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoNetwork) GTEST_SKIP() << "this process may have no network";
    FAIL() << "the child ended with " << status;
  }
  EXPECT_EQ(connect_to(port), ECONNREFUSED);
  EXPECT_EQ(getuid(), geteuid());
  close(to_child[1]);  // The child's end.
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "it listens, and reaches itself";
  close(to_parent[0]);
  close(to_child[0]);
}

}  // namespace
}  // namespace narrowcast::launcher
