#include "ops/comm/link/link_probe.h"

#include <algorithm>
#include <vector>

#include "ops/common/median.h"

namespace narrowcast::collectives {
namespace {

constexpr double kMostGrowth = 4;  // Largest ratio of the sizes of two successive messages.
constexpr double kMargin = 1.25;   // Extra size, because the time of a message varies.

}  // namespace

LinkRates measure_by(LinkProbe& probe, const LinkEffort& effort) {
  LinkRates rates;
  rates.cost.seconds_per_hop = probe.seconds_per_hop(effort.pings);
  int64_t bytes = effort.least_bytes;
  std::vector<double> seconds;  // Times of messages of that size.
  for (bool is_growing = true; is_growing || static_cast<int64_t>(seconds.size()) < effort.messages;) {
    seconds.push_back(probe.seconds_of_message(bytes));
    is_growing = is_growing && seconds.back() < effort.message_seconds && bytes < effort.most_bytes;
    if (is_growing) {
      const double growth = std::min(kMostGrowth, kMargin * effort.message_seconds / seconds.back());
      bytes = std::min(effort.most_bytes, static_cast<int64_t>(growth * static_cast<double>(bytes)));
      seconds.clear();
    }
  }
  rates.cost.seconds_per_byte = median(seconds) / static_cast<double>(bytes);
  rates.message_bytes = bytes;
  rates.payload_bytes_sent = probe.payload_bytes_sent();
  return rates;
}

}  // namespace narrowcast::collectives
