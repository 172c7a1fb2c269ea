#include "ops/collectives/auto_quantize/agreement.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"
#include "ops/common/backend_errors.h"

namespace narrowcast::collectives {
namespace {

// The numbers are the elements that this rank sends to each rank, then the elements for which it has room from each.
Announcement announcement_of(const Exchange& exchange) {
  Announcement announcement{.call = operator_name(exchange.collective),
                            .entries = {{"qtype", c10::str(exchange.encoding.qtype)}},
                            .numbers = exchange.sends};
  announcement.numbers.insert(announcement.numbers.end(), exchange.receives.begin(), exchange.receives.end());
  return announcement;
}

// The device for a group that moves no CPU tensors: the device of this rank's tensors. A rank that refuses has no
// tensors.
at::Device device_of(const Exchange& exchange) {
  return exchange.sources.empty() ? any_device(exchange.group) : exchange.sources[0].device();
}

std::vector<Announcement> gather(const Exchange& exchange, const Announcement& own) {
  const int64_t bytes_of_numbers = 2 * exchange.group->getSize() * static_cast<int64_t>(sizeof(int64_t));
  return agree(exchange.group, own, device_of(exchange), kAnnouncementBytes + bytes_of_numbers);
}

// Throws unless these can be the sizes of a call. Numbers from other ranks are checked before they are used.
void check_sizes(const std::vector<Announcement>& ranks, const Exchange& exchange) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<int64_t>& sizes = ranks[rank].numbers;
    if (sizes.size() != 2 * ranks.size() || *std::min_element(sizes.begin(), sizes.end()) < 0) {
      throw_backend_error(exchange.rank, operator_name(exchange.collective),
                          c10::str("rank ", rank, " sent a message that does not contain the sizes of this call"));
    }
  }
}

// The name, in errors, of the place of rank `receiver` for the part of `sender`.
std::string place_name(Collective collective, int64_t sender) {
  if (collective == Collective::kAllToAllSingle) {
    return "output has room for";
  }
  return c10::str("outputs[", sender, "] has");
}

void check_parts_fit(const std::vector<Announcement>& ranks, Collective collective) {
  const auto world_size = static_cast<int64_t>(ranks.size());
  for (int64_t sender = 0; sender < world_size; ++sender) {
    for (int64_t receiver = 0; receiver < world_size; ++receiver) {
      const int64_t part = ranks[sender].numbers[receiver];
      const int64_t place = ranks[receiver].numbers[world_size + sender];
      TORCH_CHECK_VALUE(part == place, operator_name(collective), ": rank ", sender, " sends ", part,
                        " elements to rank ", receiver, ", whose ", place_name(collective, sender), " ", place);
    }
  }
}

// Uses only the parts that this rank sends or receives, whose sizes are known from its tensors. So it does not trust
// a number that another rank sent. In an all-gather there are no other parts.
int64_t longest_part(const Exchange& exchange) {
  int64_t longest = 0;
  for (const auto* const parts : {&exchange.sends, &exchange.receives}) {
    longest = std::max(longest, *std::max_element(parts->begin(), parts->end()));
  }
  return longest;
}

}  // namespace

int64_t agree(const Exchange& exchange) {
  const std::vector<Announcement> ranks = gather(exchange, announcement_of(exchange));
  check_sizes(ranks, exchange);
  check_parts_fit(ranks, exchange.collective);
  return longest_part(exchange);
}

void refuse(const Exchange& exchange, const Refusal& refusal) {
  refuse_together(refusal, [&] { gather(exchange, {.call = operator_name(exchange.collective), .refusal = refusal}); });
}

}  // namespace narrowcast::collectives
