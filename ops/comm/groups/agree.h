// How ranks agree on a call: each rank announces its call, and all ranks compare the same announcements in the same
// way. So either all ranks continue or all throw the same error.
//
// There is one wire form, one reader and one comparison. Three transports carry messages:
//  - agree(): one all-gather of slots, for calls that use the group's own collectives;
//  - AnnouncementExchange (announcement_exchange.h): slots from peer to peer, for jobs of the engine;
//  - check_equal_on_all_ranks (<narrowcast/consensus.h>): hashes, then messages only if hashes differ, for long lists
//    such as a model's parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include <narrowcast/export.h>
#include "ops/comm/groups/arguments.h"

namespace narrowcast::collectives {

// Something that must be the same on all ranks.
struct Entry {
  std::string name;
  std::string value;

  bool operator==(const Entry&) const = default;
};

struct Announcement {
  std::string call = {};                          // Its name in errors; may be empty. The same on all ranks.
  std::vector<Entry> entries = {};                // The same on all ranks.
  std::vector<int64_t> numbers = {};              // May differ between ranks; the caller checks them.
  std::optional<Refusal> refusal = std::nullopt;  // Why this rank cannot take part.
};

// The wire form of an announcement:
//   8 bytes  kMessageMark
//   8 bytes  the number of bytes that follow
//   1 byte   refusal: 0 without one, 'V' for a wrong value, 'T' for a wrong type; then its reason
//            the call
//            the number of entries, and the name and the value of each
//            the number of numbers, and 8 bytes for each
//
// A text is its size and its bytes. Sizes of texts and numbers of items have 4 bytes. All ranks of a job have the same
// byte order. Reasons are cut at kLongestReason.
//
// from_message reads it. Zeros may follow the message, as in a slot. Empty for any other bytes.
std::optional<Announcement> from_message(std::string_view bytes);

// The last byte changes with this form and with the bytes of a wire format. So ranks refuse each other if their
// libraries have different forms or formats.
inline constexpr int64_t kMessageMark = 0x6E63616772656501;
inline constexpr size_t kLongestReason = 880;

// A message followed by zeros, uint8 [bytes]. kAnnouncementBytes has room for any refusal and for a few short entries.
inline constexpr int64_t kAnnouncementBytes = 1024;
at::Tensor slot_of(const Announcement& announcement, int64_t bytes = kAnnouncementBytes);

// The messages in slots [W, bytes], as views into them.
std::vector<std::string_view> messages_in(const at::Tensor& slots);

// Whether these bytes begin as a message with a refusal. Reads nothing else.
bool has_refusal(std::string_view message);

}  // namespace narrowcast::collectives

namespace narrowcast {
namespace NARROWCAST_EXPORT collectives {  // Used by our other libraries as well.

// An announcement in the wire form described above.
std::string to_message(const Announcement& announcement);

// Throws, the same on all ranks, unless all ranks announce the same. `messages`: by rank, this rank's own among them.
// Equal messages, the usual case, are neither decoded nor copied.
//  - c10::DistBackendError "rank R: STEP failed: ..." names the first rank whose message is not an announcement.
//  - c10::ValueError or c10::TypeError is the refusal of the first rank that has one: "CALL on rank 1: REASON".
//  - c10::ValueError names the first rank that differs from rank 0, and its first entry that differs: "CALL: NAME
//    differs between ranks: rank 0 has A, rank 2 does not have it". Entries are compared by name, in the order of rank
//    0. Entries that both ranks have come first. If all are equal, their order must also be equal.
void check_announcements(int64_t rank, const std::string& step, const std::vector<std::string_view>& messages);

// "NAME differs between ranks: rank 0 has FIRST, rank R has OTHER", printable and bounded.
std::string text_of_difference(std::string_view name, std::optional<std::string_view> first, int64_t rank,
                               std::optional<std::string_view> other);

// A collective: one all-gather of slots, then the comparison of check_announcements. Returns the announcements by rank.
// `slot_bytes` is the same on all ranks. The all-gather runs on the CPU if the group can, else on `device`, and the
// host waits for it. c10::DistBackendError naming this rank and the call if a peer or the network fails.
std::vector<Announcement> agree(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Announcement& own,
                                std::optional<at::Device> device = std::nullopt,
                                int64_t slot_bytes = kAnnouncementBytes);

}  // namespace collectives
}  // namespace narrowcast
