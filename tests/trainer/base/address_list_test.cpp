#include "trainer/base/address_list.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace narrowcast::network {
namespace {

TEST(FindAddresses, KnowsNamesAndNumbers) {
  for (const char* const host : {"127.0.0.1", "localhost", "::1"}) {
    int error = -1;
    EXPECT_NE(find_addresses(host, error), nullptr) << host;
    EXPECT_EQ(error, 0);
  }
}

TEST(FindAddresses, SaysWhyThereAreNone) {
  int error = 0;
  EXPECT_EQ(find_addresses("no such host", error), nullptr);
  EXPECT_NE(error, 0);
}

TEST(SocketAddress, CarriesThePort) {
  int error = 0;
  const AddressList four = find_addresses("127.0.0.1", error);
  const SocketAddress address(*four, 1234);
  EXPECT_EQ(reinterpret_cast<const sockaddr_in*>(address.get())->sin_port, htons(1234));
  EXPECT_EQ(address.port(), 1234);
  EXPECT_FALSE(address.means_all());
  const AddressList six = find_addresses("::1", error);
  const SocketAddress long_address(*six, 1234);
  EXPECT_EQ(reinterpret_cast<const sockaddr_in6*>(long_address.get())->sin6_port, htons(1234));
  EXPECT_EQ(long_address.port(), 1234);
}

TEST(SocketAddress, KnowsTheAddressesThatMeanAll) {
  for (const char* const host : {"0.0.0.0", "::"}) {
    int error = 0;
    EXPECT_TRUE(SocketAddress(*find_addresses(host, error), 0).means_all()) << host;
    EXPECT_TRUE(means_all(find_addresses(host, error))) << host;
  }
  int error = 0;
  EXPECT_FALSE(means_all(find_addresses("localhost", error)));
  EXPECT_FALSE(means_all(find_addresses("no such host", error)));
}

}  // namespace
}  // namespace narrowcast::network
