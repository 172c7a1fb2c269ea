#include "trainer/launcher/network/netlink.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using ::testing::StartsWith;

template <class Value>
Value read_at(const std::vector<uint8_t>& bytes, size_t place) {
  Value value{};
  std::memcpy(&value, bytes.data() + place, sizeof(value));
  return value;
}

// Attributes begin at multiples of 4 bytes. Their lengths include their headers and exclude the padding.
TEST(NetlinkMessage, HasAttributesInAttributes) {
  NetlinkMessage message(RTM_NEWLINK, NLM_F_CREATE);
  message.header(ifinfomsg{}).begin(IFLA_LINKINFO).add_text(IFLA_INFO_KIND, "veth").end().add(IFLA_MTU, uint32_t{1500});
  const std::vector<uint8_t> bytes = message.bytes();

  const auto header = read_at<nlmsghdr>(bytes, 0);
  EXPECT_EQ(header.nlmsg_len, bytes.size());
  EXPECT_EQ(header.nlmsg_type, RTM_NEWLINK);
  EXPECT_EQ(header.nlmsg_flags, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE);
  const size_t outer = NLMSG_HDRLEN + sizeof(ifinfomsg);
  const size_t inner = outer + NLA_HDRLEN;
  const size_t next = inner + NLA_HDRLEN + 8;
  EXPECT_EQ(read_at<nlattr>(bytes, outer).nla_len, next - outer);
  EXPECT_EQ(read_at<nlattr>(bytes, outer).nla_type, IFLA_LINKINFO);
  EXPECT_EQ(read_at<nlattr>(bytes, inner).nla_len, NLA_HDRLEN + 5);
  EXPECT_STREQ(reinterpret_cast<const char*>(bytes.data() + inner + NLA_HDRLEN), "veth");
  EXPECT_EQ(read_at<nlattr>(bytes, next).nla_type, IFLA_MTU);
  EXPECT_EQ(read_at<uint32_t>(bytes, next + NLA_HDRLEN), 1500U);
  EXPECT_EQ(bytes.size(), next + NLA_HDRLEN + 4);
}

TEST(NetlinkSocket, KnowsInterfaces) {
  NetlinkSocket socket;
  EXPECT_EQ(socket.index_of("lo"), 1);
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { socket.index_of("nonesuch"); }),
            "interface nonesuch: No such device");
}

// No interface has that number, so the request fails for any user.
TEST(NetlinkSocket, TellsWhyTheKernelRefuses) {
  ifinfomsg header{};
  header.ifi_index = 2'000'000'000;
  NetlinkMessage message(RTM_NEWLINK, 0);
  message.header(header);
  NetlinkSocket socket;
  const std::string refusal =
      testing::error_message<c10::ValueError>([&] { socket.request("changing nothing", std::move(message)); });
  EXPECT_THAT(refusal, ::testing::AnyOf(StartsWith("changing nothing: No such device"),
                                        StartsWith("changing nothing: Operation not permitted")));
}

}  // namespace
}  // namespace narrowcast::launcher
