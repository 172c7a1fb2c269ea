#include "trainer/base/network/connections.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

#include "ops/common/file_descriptor.h"

namespace narrowcast::network {
namespace {

// Two ends of a TCP connection on this machine.
struct Connected {
  Connected() {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    const FileDescriptor listening(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(bind(listening.get(), any, size), 0);
    EXPECT_EQ(listen(listening.get(), 1), 0);
    EXPECT_EQ(getsockname(listening.get(), any, &size), 0);
    one = FileDescriptor(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(connect(one.get(), any, size), 0);
    other = FileDescriptor(accept(listening.get(), nullptr, nullptr));
  }
  // Whether a byte comes from one end to the other. False at the end of the connection.
  bool carries() const {
    char byte = 7;
    return send(one.get(), &byte, 1, MSG_NOSIGNAL) == 1 && recv(other.get(), &byte, 1, 0) == 1;
  }
  FileDescriptor one;
  FileDescriptor other;
};

TEST(Connections, EndsThoseThatWereNotThereBefore) {
  const Connected old;
  const Connections before = Connections::of_this_process();
  const Connected fresh;
  const Connections made = Connections::of_this_process().without(before);
  EXPECT_TRUE(fresh.carries());
  made.shut_down();
  EXPECT_FALSE(fresh.carries());
  EXPECT_TRUE(old.carries());
}

TEST(Connections, LeavesAFileThatTookADescriptor) {
  const Connections before = Connections::of_this_process();
  auto closed = std::make_unique<Connected>();
  const Connections made = Connections::of_this_process().without(before);
  closed.reset();
  const Connected successor;  // It gets the same descriptors.
  made.shut_down();
  EXPECT_TRUE(successor.carries());
}

TEST(Connections, LeavesSocketsThatListen) {
  const Connections before = Connections::of_this_process();
  const FileDescriptor listening(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(listen(listening.get(), 1), 0);  // At any free port.
  Connections::of_this_process().without(before).shut_down();
  int accepts = 0;
  socklen_t size = sizeof(accepts);
  EXPECT_EQ(getsockopt(listening.get(), SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size), 0);
  EXPECT_EQ(accepts, 1);
}

}  // namespace
}  // namespace narrowcast::network
