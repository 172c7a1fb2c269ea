#include "trainer/base/addresses.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::network {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST(AddressesTest, KnowsItsOwn) {
  EXPECT_TRUE(is_own_address("127.0.0.1"));
  EXPECT_TRUE(is_own_address("127.0.0.2"));
  EXPECT_TRUE(is_own_address("::1"));
  EXPECT_TRUE(is_own_address("localhost"));
  EXPECT_FALSE(is_own_address("203.0.113.255"));  // Set aside for documents (RFC 5737): no machine has it.
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

}  // namespace
}  // namespace narrowcast::network
