#include "ops/comm/groups/agree.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "ops/comm/groups/group.h"
#include "ops/common/backend_errors.h"
#include "ops/common/text.h"

namespace narrowcast::collectives {
namespace {

constexpr char kNoRefusal = '\0';
constexpr char kWrongValue = 'V';
constexpr char kWrongType = 'T';
constexpr size_t kRefusalAt = sizeof(kMessageMark) + sizeof(int64_t);

class Writer {
 public:
  template <class Number>
  requires std::is_arithmetic_v<Number>
  void write(Number number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number)); }

  void write(std::string_view text) {
    write(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  void write(const Entry& entry) {
    write(std::string_view(entry.name));
    write(std::string_view(entry.value));
  }
  void write(const std::optional<Refusal>& refusal) {
    write(!refusal ? kNoRefusal : refusal->wrong_type ? kWrongType : kWrongValue);
    write(refusal ? first_characters(refusal->reason, kLongestReason) : std::string_view());
  }
  template <class Item>
  void write(const std::vector<Item>& items) {
    write(static_cast<uint32_t>(items.size()));
    for (const Item& item : items) write(item);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Each function returns false if the bytes end too early or are invalid.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  template <class Number>
  requires std::is_arithmetic_v<Number>
  bool read(Number& number) {
    if (left_.size() < sizeof(number)) return false;
    std::memcpy(&number, left_.data(), sizeof(number));
    left_.remove_prefix(sizeof(number));
    return true;
  }
  bool read(std::string& text) {
    uint32_t size = 0;
    if (!read(size) || left_.size() < size) return false;
    text = left_.substr(0, size);
    left_.remove_prefix(size);
    return true;
  }
  bool read(Entry& entry) { return read(entry.name) && read(entry.value); }
  bool read(std::optional<Refusal>& refusal) {
    char kind = kNoRefusal;
    std::string reason;
    if (!read(kind) || !read(reason)) return false;
    if (kind == kNoRefusal) return reason.empty();
    refusal = Refusal{kind == kWrongType, reason};
    return (kind == kWrongType || kind == kWrongValue) && reason.size() <= kLongestReason;
  }
  // If the number of items is larger than the bytes allow, reading fails at their end.
  template <class Item>
  bool read(std::vector<Item>& items) {
    uint32_t count = 0;
    if (!read(count)) return false;
    while (items.size() < count) {
      if (!read(items.emplace_back())) return false;
    }
    return true;
  }
  std::string_view left() const { return left_; }

 private:
  std::string_view left_;
};

using Entries = std::vector<Entry>;
using Announcements = std::vector<Announcement>;

// If a name occurs several times, its first value.
using ValuesByName = std::map<std::string_view, std::string_view>;

ValuesByName values_by_name(const Entries& entries) {
  ValuesByName values;
  for (const Entry& entry : entries) values.emplace(entry.name, entry.value);
  return values;
}

std::optional<std::string_view> value_of(const ValuesByName& values, std::string_view name) {
  const auto found = values.find(name);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

// The difference between lists whose names have the same first values. Values can then differ only for a name that
// occurs several times.
std::string difference_in_order(const Entries& first, int64_t rank, const Entries& other) {
  const auto [in_first, in_other] = std::ranges::mismatch(first, other);
  const bool both = in_first != first.end() && in_other != other.end();
  if (both && in_first->name == in_other->name) {
    return text_of_difference(in_first->name, in_first->value, rank, in_other->value);
  }
  const auto name_of = [](const Entries& entries, Entries::const_iterator place) {
    return place == entries.end() ? std::nullopt : std::optional<std::string_view>(place->name);
  };
  return text_of_difference("the order", name_of(first, in_first), rank, name_of(other, in_other));
}

std::string difference_between(const Entries& first, int64_t rank, const Entries& other) {
  const ValuesByName in_first = values_by_name(first);
  const ValuesByName in_other = values_by_name(other);
  // Entries that both have come first: another hook, for example, has other options.
  for (const bool both : {true, false}) {
    for (const Entries* const entries : {&first, &other}) {
      for (const Entry& entry : *entries) {
        const auto value = value_of(in_first, entry.name);
        const auto other_value = value_of(in_other, entry.name);
        if (value != other_value && (value.has_value() && other_value.has_value()) == both) {
          return text_of_difference(entry.name, value, rank, other_value);
        }
      }
    }
  }
  return difference_in_order(first, rank, other);
}

void check_no_refusal(const Announcements& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].refusal) throw_refusal(*all[rank].refusal, all[rank].call, static_cast<int64_t>(rank));
  }
}

void check_equal(const Announcements& all) {
  const Announcement& first = all[0];
  for (int64_t rank = 1; rank < std::ssize(all); ++rank) {
    const Announcement& other = all[static_cast<size_t>(rank)];
    TORCH_CHECK_VALUE(other.call == first.call, text_of_difference("call", first.call, rank, other.call),
                      "; all ranks must make the same calls in the same order");
    TORCH_CHECK_VALUE(other.entries == first.entries, printable(first.call, kLongestCompared),
                      first.call.empty() ? "" : ": ", difference_between(first.entries, rank, other.entries));
  }
}

// Equal messages are equal to this rank's own, which is valid.
bool are_equal_without_refusal(const std::vector<std::string_view>& messages) {
  const std::string_view first = messages.at(0);
  return first.size() > kRefusalAt && !has_refusal(first) &&
         std::ranges::all_of(messages, [&](std::string_view message) { return message == first; });
}

// As check_announcements; returns the announcements.
Announcements decode_and_check(int64_t rank, const std::string& step, const std::vector<std::string_view>& messages) {
  Announcements all;
  for (const std::string_view message : messages) {
    auto announcement = from_message(message);
    if (!announcement) {
      throw_backend_error(
          rank, step,
          c10::str("rank ", all.size(),
                   " sent a message that is not an announcement; all ranks must use the same version of narrowcast"));
    }
    all.push_back(std::move(*announcement));
  }
  check_no_refusal(all);
  check_equal(all);
  return all;
}

}  // namespace

std::string to_message(const Announcement& announcement) {
  Writer body;
  body.write(announcement.refusal);
  body.write(std::string_view(announcement.call));
  body.write(announcement.entries);
  body.write(announcement.numbers);
  Writer head;
  head.write(kMessageMark);
  head.write(static_cast<int64_t>(body.bytes().size()));
  return head.bytes() + body.bytes();
}

std::optional<Announcement> from_message(std::string_view bytes) {
  Reader head(bytes);
  int64_t mark = 0;
  int64_t size = 0;
  if (!head.read(mark) || !head.read(size) || mark != kMessageMark || size < 0 || size > std::ssize(head.left())) {
    return std::nullopt;
  }
  const std::string_view padding = head.left().substr(static_cast<size_t>(size));
  Reader body(head.left().substr(0, static_cast<size_t>(size)));
  Announcement read;
  const bool is_whole = body.read(read.refusal) && body.read(read.call) && body.read(read.entries) &&
                        body.read(read.numbers) && body.left().empty() &&
                        padding.find_first_not_of('\0') == std::string_view::npos;
  return is_whole ? std::optional(std::move(read)) : std::nullopt;
}

at::Tensor slot_of(const Announcement& announcement, int64_t bytes) {
  const std::string message = to_message(announcement);
  TORCH_INTERNAL_ASSERT(std::ssize(message) <= bytes, announcement.call, ": ", message.size(), " bytes in a slot of ",
                        bytes);
  at::Tensor slot = at::zeros({bytes}, at::kByte);
  std::memcpy(slot.mutable_data_ptr(), message.data(), message.size());
  return slot;
}

std::vector<std::string_view> messages_in(const at::Tensor& slots) {
  const auto* const bytes = static_cast<const char*>(slots.const_data_ptr());
  const auto size = static_cast<size_t>(slots.size(1));
  std::vector<std::string_view> messages;
  for (size_t rank = 0; rank < static_cast<size_t>(slots.size(0)); ++rank) {
    messages.emplace_back(bytes + rank * size, size);
  }
  return messages;
}

bool has_refusal(std::string_view message) { return message.size() > kRefusalAt && message[kRefusalAt] != kNoRefusal; }

void check_announcements(int64_t rank, const std::string& step, const std::vector<std::string_view>& messages) {
  // A backward pass waits for this function.
  if (!are_equal_without_refusal(messages)) {
    decode_and_check(rank, step, messages);
  }
}

std::string text_of_difference(std::string_view name, std::optional<std::string_view> first, int64_t rank,
                               std::optional<std::string_view> other) {
  const auto what_it_has = [](std::optional<std::string_view> value) {
    return value ? " has " + printable(*value, kLongestCompared) : " does not have it";
  };
  return c10::str(printable(name, kLongestCompared), " differs between ranks: rank 0", what_it_has(first), ", rank ",
                  rank, what_it_has(other));
}

std::vector<Announcement> agree(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Announcement& own,
                                std::optional<at::Device> device, int64_t slot_bytes) {
  const std::string step = own.call.empty() ? "comparing values" : own.call;
  const bool on_cpu = !device || moves_cpu_tensors(group);
  const at::Tensor slots = all_gather_rows(group, step, slot_of(own, slot_bytes), on_cpu ? any_device(group) : *device);
  return decode_and_check(group->getRank(), step, messages_in(slots));
}

}  // namespace narrowcast::collectives
