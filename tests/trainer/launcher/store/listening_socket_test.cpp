#include "trainer/launcher/store/listening_socket.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const std::string& address, int64_t port) {
  return testing::error_message<c10::ValueError>([&] { ListeningSocket(address, port, {}); });
}

TEST(ListeningSocket, FindsAFreePort) {
  const ListeningSocket one("127.0.0.1", 0, {});
  const ListeningSocket other("localhost", 0, {});
  EXPECT_GT(one.port(), 0);
  EXPECT_NE(one.port(), other.port());
}

TEST(ListeningSocket, RefusesAPortInUse) {
  const ListeningSocket other("127.0.0.1", 0, {});
  EXPECT_EQ(refusal("127.0.0.1", other.port()),
            "--master_port=" + std::to_string(other.port()) + ": cannot be used: Address already in use");
}

TEST(ListeningSocket, TellsAPortInUseFromOthersThatCannotBeUsed) {
  const ListeningSocket other("127.0.0.1", 0, {});
  EXPECT_THROW(ListeningSocket("127.0.0.1", other.port(), {}), PortInUseError);
  try {
    ListeningSocket("192.0.2.1", 0, {});
    ADD_FAILURE() << "listens at another machine's address";
  } catch (const PortInUseError&) {
    ADD_FAILURE() << "the address is the trouble";
  } catch (const c10::ValueError&) {
    SUCCEED();
  }
}

TEST(ListeningSocket, RefusesWhatIsNoPort) {
  EXPECT_EQ(refusal("127.0.0.1", 65536), "--master_port=65536: must be from 0 to 65535");
  EXPECT_EQ(refusal("127.0.0.1", -1), "--master_port=-1: must be from 0 to 65535");
}

TEST(ListeningSocket, RefusesAddressesThatAreNotThisMachines) {
  // 192.0.2.0/24 is set aside for documents (RFC 5737): no machine has it.
  EXPECT_EQ(refusal("192.0.2.1", 0),
            "--master_addr=192.0.2.1: not an address of this machine, where the job's store is served");
  EXPECT_THAT(refusal("no such host", 0), StartsWith("--master_addr=no such host: "));
}

TEST(ListeningSocket, RefusesToListenEverywhere) {
  EXPECT_THAT(refusal("0.0.0.0", 0), HasSubstr("--master_addr=0.0.0.0: means every address of this machine"));
  EXPECT_THAT(refusal("::", 0), HasSubstr("means every address of this machine"));
}

TEST(ListeningSocket, StaysWhenADuplicateIsClosed) {
  const ListeningSocket socket("127.0.0.1", 0, {});
  close(socket.duplicate());
  EXPECT_THAT(refusal("127.0.0.1", socket.port()), HasSubstr("Address already in use"));
}

TEST(OwnAddress, IsLoopbackButNotADocumentationAddress) {
  EXPECT_TRUE(is_own_address("127.0.0.1"));
  EXPECT_TRUE(is_own_address("localhost"));
  EXPECT_FALSE(is_own_address("192.0.2.1"));
  EXPECT_FALSE(is_own_address("no such host"));
}

}  // namespace
}  // namespace narrowcast::launcher
