#include "trainer/launcher/group/store_socket.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

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
  // 192.0.2.0/24 is set aside for documents (RFC 5737): no machine has it.
  EXPECT_EQ(refusal("192.0.2.1", 0),
            "--master_addr=192.0.2.1: not an address of this machine, where the job's store is served");
  EXPECT_THAT(refusal("no such host", 0), StartsWith("--master_addr=no such host: "));
}

TEST(StoreSocket, RefusesToListenEverywhere) {
  EXPECT_THAT(refusal("0.0.0.0", 0), HasSubstr("--master_addr=0.0.0.0: means every address of this machine"));
  EXPECT_THAT(refusal("::", 0), HasSubstr("means every address of this machine"));
}

}  // namespace
}  // namespace narrowcast::launcher
