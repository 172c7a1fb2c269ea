#include "trainer/launcher/rendezvous/rendezvous_options.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::StartsWith;

TEST(NodeCount, IsANumberOrARange) {
  EXPECT_EQ(parse_nnodes("3").least, 3);
  EXPECT_EQ(parse_nnodes("3").most, 3);
  EXPECT_EQ(parse_nnodes("1:4").least, 1);
  EXPECT_EQ(parse_nnodes("1:4").most, 4);
  EXPECT_FALSE(parse_nnodes("1:1").several());
  EXPECT_TRUE(parse_nnodes("1:2").several());
}

TEST(NodeCount, RefusesTheRest) {
  for (const char* const text : {"", "0", "-1", "2:1", "1:", ":2", "1:2:3", "x", "4097"}) {
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { parse_nnodes(text); }),
                StartsWith(std::string("--nnodes=") + text + ": must be a number of nodes"));
  }
}

TEST(Endpoint, HasAHostAndMaybeAPort) {
  EXPECT_EQ(parse_endpoint("node0:1234", 5).host, "node0");
  EXPECT_EQ(parse_endpoint("node0:1234", 5).port, 1234);
  EXPECT_EQ(parse_endpoint("node0", 5).port, 5);
  EXPECT_EQ(parse_endpoint("[fe::1]:1234", 5).host, "fe::1");
  EXPECT_EQ(parse_endpoint("[fe::1]:1234", 5).port, 1234);
  EXPECT_EQ(parse_endpoint("[::1]", 5).host, "::1");
}

TEST(Endpoint, RefusesTheRest) {
  for (const char* const text : {"", ":1", "h:", "h:x", "h:65536", "h:-1", "fe::1", "[]:1"}) {
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { parse_endpoint(text, 5); }),
                StartsWith(std::string("--rdzv_endpoint=") + text + ": must be HOST:PORT"));
  }
}

TEST(Master, HasItsPortWithItOrBesideIt) {
  struct Case {
    std::string address;
    std::optional<int64_t> port;
    std::string host;
    int64_t expected;
  };
  for (const auto& [address, port, host, expected] : std::vector<Case>{{"node0", std::nullopt, "node0", 5},
                                                                       {"node0", 7, "node0", 7},
                                                                       {"::1", 7, "::1", 7},
                                                                       {"[::1]", 7, "::1", 7},
                                                                       {"[::1]:7", std::nullopt, "::1", 7},
                                                                       {"[::1]:7", 7, "::1", 7},
                                                                       {"10.0.0.1:7", std::nullopt, "10.0.0.1", 7}}) {
    const Endpoint read = parse_master(address, port, 5);
    EXPECT_EQ(read.host, host) << address;
    EXPECT_EQ(read.port, expected) << address;
  }
  const auto error_of = [](const std::string& address) {
    return testing::error_message<c10::ValueError>([&] { parse_master(address, 7, 5); });
  };
  EXPECT_EQ(error_of("[::1]:8"), "--master_addr=[::1]:8 contradicts --master_port=7");
  EXPECT_EQ(error_of("[::1"), "--master_addr=[::1: must be a name or an address");
}

std::string refused(const std::string& text, const std::string& backend = "c10d") {
  return testing::error_message<c10::ValueError>([&] { parse_rendezvous_options(text, backend); });
}

TEST(RendezvousOptions, AreReadWithTorchrunsNames) {
  const RendezvousOptions options = parse_rendezvous_options(
      "join_timeout=5,last_call_timeout=0.5,close_timeout=7,heartbeat_timeout=8,read_timeout=9,"
      "keep_alive_interval=0.1,keep_alive_max_attempt=4,is_host=true,store_type=tcp",
      "c10d");
  EXPECT_EQ(options.join_timeout, milliseconds(5000));
  EXPECT_EQ(options.last_call_timeout, milliseconds(500));
  EXPECT_EQ(options.close_timeout, milliseconds(7000));
  EXPECT_EQ(options.heartbeat_timeout, milliseconds(8000));
  EXPECT_EQ(options.read_timeout, milliseconds(9000));
  EXPECT_EQ(options.silence(), milliseconds(400));
  EXPECT_TRUE(options.is_host.value());
}

// A member that finds late that the host is lost is waited for by one that found it at once.
TEST(RendezvousOptions, BoundTheTimeUntilTheNextHostHasDecided) {
  RendezvousOptions options;
  EXPECT_EQ(options.to_reconnect(), milliseconds(3000));
  EXPECT_EQ(options.to_gather(milliseconds(500), milliseconds(100)), milliseconds(13'000));
  EXPECT_EQ(options.to_gather(milliseconds(100), milliseconds(5000)), milliseconds(22'000)) << "of the lost host";
  options.heartbeat_timeout = milliseconds(4000);
  EXPECT_EQ(options.to_reconnect(), milliseconds(2000));
  EXPECT_EQ(options.to_gather(milliseconds(0), milliseconds(0)), milliseconds(6000));
  EXPECT_EQ(options.to_be_led_on(milliseconds(100)), milliseconds(4200 + 6200 + 1000));
}

TEST(RendezvousOptions, HaveDefaults) {
  const RendezvousOptions options = parse_rendezvous_options("", "static");
  EXPECT_EQ(options.join_timeout, milliseconds(600'000));
  EXPECT_EQ(options.silence(), milliseconds(10'000));
  EXPECT_FALSE(options.is_host);
}

TEST(RendezvousOptions, RefuseTheRest) {
  EXPECT_THAT(refused("timeout=5"), StartsWith("--rdzv_conf: unknown key 'timeout'; known: close_timeout, "));
  EXPECT_EQ(refused("join_timeout"), "--rdzv_conf: 'join_timeout' is not KEY=VALUE");
  EXPECT_EQ(refused("join_timeout=soon"),
            "--rdzv_conf: join_timeout=soon: must be a number of seconds above 0 and up to 86400");
  EXPECT_EQ(refused("join_timeout=0"),
            "--rdzv_conf: join_timeout=0: must be a number of seconds above 0 and up to 86400");
  EXPECT_EQ(refused("keep_alive_max_attempt=1"),
            "--rdzv_conf: keep_alive_max_attempt=1: must be a number from 2 to 1000");
  EXPECT_EQ(refused("is_host=maybe"), "--rdzv_conf: is_host=maybe: must be true or false");
  EXPECT_EQ(refused("store_type=file"), "--rdzv_conf: store_type=file: must be tcp, the only supported store");
}

TEST(RendezvousOptions, RefuseWhatMeansNothingForFixedNodes) {
  EXPECT_EQ(
      refused("is_host=1", "static"),
      "--rdzv_conf: is_host=1: with --rdzv_backend=static node 0 is the host; is_host=false lets it join a job that "
      "runs");
  EXPECT_EQ(parse_rendezvous_options("is_host=0", "static").is_host, false);
  EXPECT_EQ(refused("last_call_timeout=1", "static"),
            "--rdzv_conf: last_call_timeout has no effect with --rdzv_backend=static");
}

}  // namespace
}  // namespace narrowcast::launcher
