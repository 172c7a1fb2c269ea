#include "trainer/launcher/group/sealed_entries.h"

#include <c10/util/StringUtil.h>

#include <charconv>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>

namespace narrowcast::launcher {
namespace {

constexpr std::string_view kSealed = "narrowcast-seal-1 ";

std::string with_length(std::string_view text) { return c10::str(text.size(), ":", text); }

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// Takes what is before the next space from `rest`.
std::string_view take_word(std::string_view& rest) {
  const size_t end = rest.find(' ');
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return word;
}

}  // namespace

// A get would wait, for minutes, for a key that was removed since it was looked for. A comparison with what nobody else
// has ever set tells what there is, and answers with that where there is nothing.
std::optional<std::string> SealedEntries::read(const std::string& key) const {
  static const std::string nothing = program::random_nonce();
  const std::vector<uint8_t> probe = bytes_of(nothing);
  const std::vector<uint8_t> found = store_->compareSet(key, probe, probe);
  return found == probe ? std::nullopt : std::optional(std::string(found.begin(), found.end()));
}

std::string SealedEntries::mac(const std::string& session, const std::string& key, const Entry& entry) const {
  return seal_.secret->mac(c10::str(with_length(seal_.job), with_length(session), with_length(key), entry.number, ":",
                                    with_length(entry.text)));
}

void SealedEntries::set_in(const std::string& session, const std::string& key, const std::string& text) {
  const Entry entry{++written_, text};
  const std::string value =
      has_secret() ? c10::str(kSealed, mac(session, key, entry), " ", entry.number, " ", text) : text;
  own_[key] = value;
  store_->set(key, bytes_of(value));
}

std::optional<SealedEntries::Entry> SealedEntries::verified(const std::string& session, const std::string& key,
                                                            const std::string& value) const {
  std::string_view rest = value;
  if (!rest.starts_with(kSealed)) {
    return std::nullopt;
  }
  rest.remove_prefix(kSealed.size());
  const std::string_view claimed = take_word(rest);
  const std::string_view number = take_word(rest);
  const char* const end = number.data() + number.size();
  Entry entry;
  if (number.empty() || std::from_chars(number.data(), end, entry.number).ptr != end) {
    return std::nullopt;
  }
  entry.text = rest;
  const bool is_proven = program::equal_in_constant_time(claimed, mac(session, key, entry));
  return is_proven ? std::optional(std::move(entry)) : std::nullopt;
}

void SealedEntries::reject(const std::string& key, const std::string& value) {
  const size_t hash = std::hash<std::string>()(value);
  const auto [last, is_first] = last_rejected_.try_emplace(key, hash);
  rejected_ += is_first || last->second != hash ? 1 : 0;
  last->second = hash;
}

std::optional<std::string> SealedEntries::open(const std::string& key, const std::string& value, size_t most_bytes) {
  if (!has_secret()) {
    NARROWCAST_CHECK_INPUT(!value.starts_with(kSealed),
                           "the launchers' store is sealed with a secret: give this launcher --secret_file, too");
    return value;
  }
  const auto before = accepted_.find(key);
  std::optional<Entry> entry = value.size() <= most_bytes ? verified(seal_.session, key, value) : std::nullopt;
  if (entry.has_value() && (before == accepted_.end() || before->second.number <= entry->number)) {
    accepted_[key] = *entry;
    return std::move(entry->text);
  }
  reject(key, value);
  return before == accepted_.end() ? std::nullopt : std::optional(before->second.text);
}

std::optional<std::string> SealedEntries::get(const std::string& key, size_t most_bytes) {
  if (const std::optional<std::string> value = read(key)) {
    return open(key, *value, most_bytes);
  }
  const auto before = accepted_.find(key);
  return before == accepted_.end() ? std::nullopt : std::optional(before->second.text);
}

std::optional<std::string> SealedEntries::get_in(const std::string& session, const std::string& key) {
  const std::optional<std::string> value = read(key);
  if (!value.has_value()) {
    return std::nullopt;
  }
  std::optional<Entry> entry = value->size() <= kMostBytes ? verified(session, key, *value) : std::nullopt;
  if (!entry.has_value()) {
    reject(key, *value);
    return std::nullopt;
  }
  return std::move(entry->text);
}

void SealedEntries::set_again(const std::string& key) {
  const std::string& value = own_.at(key);
  if (read(key) != value) {
    store_->set(key, bytes_of(value));
  }
}

}  // namespace narrowcast::launcher
