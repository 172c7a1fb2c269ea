#include "trainer/launcher/store/sealed_entries.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "trainer/launcher/store/hosted_store.h"

namespace narrowcast::launcher {
namespace {

constexpr std::string_view kSealed = "narrowcast-seal-1 ";
constexpr int64_t kReadsBetweenLooksAtCopies = 8;  // for an intact entry without news

std::string with_length(std::string_view text) { return c10::str(text.size(), ":", text); }

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// Takes the characters before the next space from `rest`.
std::string_view take_word(std::string_view& rest) {
  const size_t end = rest.find(' ');
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return word;
}

}  // namespace

// A get would wait, for minutes, if the key was removed after it was checked. A compareSet with a value that no key
// holds returns the stored value instead, or the given value if the key does not exist.
std::optional<std::string> SealedEntries::read(const std::string& key) const {
  const std::vector<uint8_t> probe = bytes_of(nothing_);
  const std::vector<uint8_t> found = store_->compareSet(key, probe, probe);
  return found == probe ? std::nullopt : std::optional(std::string(found.begin(), found.end()));
}

std::string SealedEntries::mac(const std::string& session, const std::string& key, const Entry& entry) const {
  return seal_.secret->mac(c10::str(with_length(seal_.job), with_length(session), with_length(key), entry.number, ":",
                                    with_length(entry.text)));
}

std::string SealedEntries::copy_key(const std::string& key, int64_t number) const {
  return kLauncherKeys + ("copy/" + seal_.secret->mac(c10::str(with_length("name of a copy"), with_length(seal_.job),
                                                               with_length(seal_.session), with_length(key), number)));
}

void SealedEntries::set(const std::string& key, const std::string& text) {
  set_in(seal_.session, key, text);
  if (!has_secret()) {
    return;
  }
  const Own& own = own_.at(key);
  store_->set(copy_key(key, own.number), bytes_of(own.value));
  if (own.number > kCopies) {
    store_->deleteKey(copy_key(key, own.number - kCopies));
  }
}

void SealedEntries::set_in(const std::string& session, const std::string& key, const std::string& text) {
  Own& own = own_[key];
  own.session = session;
  own.text = text;
  const Entry entry{++own.number, text};
  own.value = has_secret() ? c10::str(kSealed, mac(session, key, entry), " ", entry.number, " ", text) : text;
  store_->set(key, bytes_of(own.value));
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
  Known& known = known_[key];
  const size_t hash = std::hash<std::string>()(value);
  rejected_ += known.rejected_hash != hash ? 1 : 0;
  known.rejected_hash = hash;
}

std::optional<std::string> SealedEntries::accepted_text(const std::string& key) const {
  const auto known = known_.find(key);
  return known != known_.end() && known->second.accepted ? std::optional(known->second.accepted->text) : std::nullopt;
}

// Accepts the value if it is a valid entry that is no older than the last one. Returns whether it did.
bool SealedEntries::accept(const std::string& key, const std::string& value, size_t most_bytes) {
  Known& known = known_[key];
  std::optional<Entry> entry = value.size() <= most_bytes ? verified(seal_.session, key, value) : std::nullopt;
  if (!entry || (known.accepted && entry->number < known.accepted->number)) {
    reject(key, value);
    return false;
  }
  known.newest = std::max(known.newest, entry->number);
  known.accepted = std::move(entry);
  return true;
}

std::optional<std::string> SealedEntries::open(const std::string& key, const std::string& value, size_t most_bytes) {
  if (!has_secret()) {
    NARROWCAST_CHECK_INPUT(!value.starts_with(kSealed),
                           "the launchers' store is sealed with a secret: this launcher needs --secret_file");
    return value;
  }
  accept(key, value, most_bytes);
  return accepted_text(key);
}

std::optional<std::string> SealedEntries::get(const std::string& key, size_t most_bytes) {
  const std::optional<std::string> value = read(key);
  if (!has_secret()) {
    return value ? open(key, *value, most_bytes) : std::nullopt;
  }
  Known& known = known_[key];
  const int64_t before = known.newest;
  const bool is_good = value && accept(key, *value, most_bytes);
  const bool is_spoiled = !is_good && (value || known.newest > 0);
  known.spoiled += is_spoiled ? 1 : 0;
  known.reads_without_news = known.newest > before ? 0 : known.reads_without_news + 1;
  // An attacker may also have written back the entry that was read last, which looks like an entry without news.
  if (!is_good || known.reads_without_news % kReadsBetweenLooksAtCopies == kReadsBetweenLooksAtCopies - 1) {
    follow_copies(key, most_bytes);
  }
  return accepted_text(key);
}

void SealedEntries::follow_copies(const std::string& key, size_t most_bytes) {
  Known& known = known_[key];
  for (int64_t looks = 0; looks < kCopies; ++looks) {
    const std::optional<std::string> copy = read(copy_key(key, known.newest + 1));
    if (!copy) {
      return;
    }
    ++known.newest;
    accept(key, *copy, most_bytes);
  }
}

void SealedEntries::remove(const std::string& key) {
  const int64_t last = std::max(newest(key), written(key));
  for (int64_t number = std::max<int64_t>(1, last - kCopies); has_secret() && number <= last; ++number) {
    store_->deleteKey(copy_key(key, number));
  }
  store_->deleteKey(key);
  known_.erase(key);
  own_.erase(key);
}

int64_t SealedEntries::written(const std::string& key) const {
  const auto own = own_.find(key);
  return own == own_.end() ? 0 : own->second.number;
}

int64_t SealedEntries::newest(const std::string& key) const {
  const auto known = known_.find(key);
  return known == known_.end() ? 0 : known->second.newest;
}

void SealedEntries::begin_at(const std::string& key, int64_t number) {
  Known& known = known_[key];
  known.newest = std::max(known.newest, number);
}

int64_t SealedEntries::spoiled(const std::string& key) const {
  const auto known = known_.find(key);
  return known == known_.end() ? 0 : known->second.spoiled;
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

// Writes a new entry, because the key of its copy has never been seen.
void SealedEntries::set_again(const std::string& key) {
  if (read(key) == own_.at(key).value) {
    return;
  }
  const Own own = own_.at(key);
  if (own.session == seal_.session) {
    set(key, own.text);
  } else {
    set_in(own.session, key, own.text);
  }
}

}  // namespace narrowcast::launcher
