#include "trainer/base/network/addresses.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::network {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST(HostAndPort, IsReadAndWrittenAlike) {
  struct Case {
    std::string text;
    std::string host;
    std::optional<int64_t> port;
  };
  for (const auto& [text, host, port] : std::vector<Case>{{"alpha", "alpha", std::nullopt},
                                                          {"10.0.0.1:29400", "10.0.0.1", 29400},
                                                          {"[::1]", "::1", std::nullopt},
                                                          {"[fe80::1%lo]:0", "fe80::1%lo", 0},
                                                          {"::1", "::1", std::nullopt},
                                                          {"[alpha]:65535", "alpha", 65535}}) {
    const std::optional<HostAndPort> read = parse_host_and_port(text);
    ASSERT_TRUE(read.has_value()) << text;
    EXPECT_EQ(read->host, host);
    EXPECT_EQ(read->port, port);
  }
  EXPECT_EQ(host_and_port("10.0.0.1", 7), "10.0.0.1:7");
  EXPECT_EQ(host_and_port("::1", 7), "[::1]:7");
}

TEST(HostAndPort, RefusesOtherTexts) {
  for (const char* const text : {"", ":7", "[]", "[]:7", "[::1", "[::1]7", "[::1]:", "[::1]:65536", "alpha:-1",
                                 "alpha:", "alpha:7x", "[::1]:7:8"}) {
    EXPECT_FALSE(parse_host_and_port(text).has_value()) << text;
  }
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

TEST(AddressesTest, NumbersStandForThemselves) {
  EXPECT_THAT(addresses_of_host("192.0.2.7"), Contains("192.0.2.7"));
  EXPECT_THAT(addresses_of_host("2001:db8::7"), Contains("2001:db8::7"));
  EXPECT_THAT(addresses_of_host("localhost"), Contains(::testing::ResultOf(is_loopback_address, true)));
  EXPECT_THAT(addresses_of_host("no-such-host.invalid"), IsEmpty());
}

TEST(AddressesTest, InterfacesAreThisMachines) {
  EXPECT_EQ(addresses_of_interface("lo").at(0), "127.0.0.1");
  EXPECT_THAT(testing::error_message<c10::ValueError>([] { addresses_of_interface("no-such-if"); }),
              HasSubstr("interface 'no-such-if' does not exist"));
}

TEST(AddressesTest, LoopbackIsAWholeNetwork) {
  EXPECT_TRUE(is_loopback_address("127.1.2.3"));
  EXPECT_TRUE(is_loopback_address("::1"));
  EXPECT_FALSE(is_loopback_address("192.0.2.7"));
  EXPECT_FALSE(is_loopback_address("::2"));
}

TEST(AddressesTest, LoopbackCanBeNamed) {
  EXPECT_TRUE(names_loopback("localhost"));
  EXPECT_TRUE(names_loopback("127.0.0.1"));
  EXPECT_FALSE(names_loopback("localhost.example"));
}

TEST(AddressesTest, KnowsItsOwn) {
  EXPECT_TRUE(is_own_address("127.0.0.1"));
  EXPECT_TRUE(is_own_address("127.0.0.2"));
  EXPECT_TRUE(is_own_address("::1"));
  EXPECT_TRUE(is_own_address("localhost"));
  EXPECT_FALSE(is_own_address("203.0.113.255"));  // Reserved for documents (RFC 5737): no machine has it.
  EXPECT_FALSE(is_own_address("no-such-host.invalid"));
}

TEST(AddressesTest, WhatMeansAllAddressesIsNoneOfThem) {
  EXPECT_FALSE(is_own_address("0.0.0.0"));
  EXPECT_FALSE(is_own_address("::"));
}

TEST(AddressesTest, TheRouteToThisMachineIsItsLoopback) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(address_towards("no-such-host.invalid"), "");
}

TEST(OwnAddresses, AreOfThisMachineButNotLoopback) {
  for (const std::string& address : own_addresses()) {
    EXPECT_TRUE(is_own_address(address)) << address;
    EXPECT_FALSE(is_loopback_address(address)) << address;
  }
  EXPECT_EQ(own_addresses().empty(), has_only_loopback());
}

}  // namespace

}  // namespace narrowcast::network
