#include "ops/comm/link/link_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace narrowcast::collectives {
namespace {

using ::testing::ElementsAre;

// A link of 5 us per hop; the test sets the time of each message.
class ToldProbe final : public LinkProbe {
 public:
  explicit ToldProbe(std::vector<double> seconds) : seconds_(std::move(seconds)) {}
  double seconds_per_hop(int64_t /*pings*/) override { return 5e-6; }
  double seconds_of_message(int64_t bytes) override {
    sizes.push_back(bytes);
    return seconds_.at(sizes.size() - 1);
  }
  int64_t payload_bytes_sent() const override { return 7; }

  std::vector<int64_t> sizes;

 private:
  const std::vector<double> seconds_;
};

TEST(MeasureBy, LetsMessagesGrowUntilOneTakesLongEnoughAndTakesTheMedianOfItsSize) {
  ToldProbe probe({1e-5, 5e-3, 1.1e-2, 5e-2, 9e-3});
  const LinkRates rates =
      measure_by(probe, {.messages = 3, .message_seconds = 1e-2, .least_bytes = 1000, .most_bytes = int64_t{1} << 20});
  EXPECT_THAT(probe.sizes, ElementsAre(1000, 4000, 10'000, 10'000, 10'000)) << "4 times at once at most";
  EXPECT_EQ(rates.message_bytes, 10'000);
  EXPECT_DOUBLE_EQ(rates.cost.seconds_per_byte, 1.1e-2 / 10'000);
  EXPECT_EQ(rates.cost.seconds_per_hop, 5e-6);
  EXPECT_EQ(rates.payload_bytes_sent, 7);
}

}  // namespace
}  // namespace narrowcast::collectives
