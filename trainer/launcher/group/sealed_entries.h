// Entries of the launchers' store that only those who know the job's secret can write.
//
// Whoever reaches the store can write there, too. With a secret each entry carries a proof of who wrote it, as what, in
// which run of the job, and when: "narrowcast-seal-1 MAC N TEXT", where N counts on with every entry of its writer and
// MAC is the HMAC-SHA-256, by the secret, of the job's name, the session, the key, N and the text, each with its
// length. The session is a number that nobody can foretell, made up by the launcher that serves the store: what was
// written in another run proves nothing in this one. What does not prove itself, or is older than what was read before,
// is ignored and counted: the reader goes on with what it has, and the writer writes its entries again, now and then.
//
// Reads never wait for a key: somebody may have removed it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trainer/base/program/job_secret.h"

namespace narrowcast::launcher {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// What launchers share.
struct JobSeal {
  std::optional<program::JobSecret> secret = {};  // Without one, entries are texts as they are.
  std::string job = {};                           // Its name: entries of another job prove nothing here.
  std::string session = {};                       // Of the run; empty where it is still to be learned.
};

// One launcher's way to the store. Not thread-safe.
class SealedEntries {
 public:
  // Of an entry that is looked at.
  static constexpr size_t kMostBytes = size_t{1} << 20;

  SealedEntries(StorePtr store, JobSeal seal) : store_(std::move(store)), seal_(std::move(seal)) {}

  c10d::Store& store() const { return *store_; }
  bool has_secret() const { return seal_.secret.has_value(); }
  const std::string& session() const { return seal_.session; }
  void begin_session(const std::string& session) { seal_.session = session; }

  void set(const std::string& key, const std::string& text) { set_in(seal_.session, key, text); }

  // The text of an entry that was read: `value`, or the last one that proved to be of its writer if this one does not;
  // nothing if there was none. Throws CorruptInputError without a secret for an entry of those who have one.
  std::optional<std::string> open(const std::string& key, const std::string& value, size_t most_bytes = kMostBytes);

  // As open, of what the store holds; what was read last where there is no such key.
  std::optional<std::string> get(const std::string& key, size_t most_bytes = kMostBytes);

  // The same for one entry in another session, which is read once: nothing unless it proves itself.
  void set_in(const std::string& session, const std::string& key, const std::string& text);
  std::optional<std::string> get_in(const std::string& session, const std::string& key);

  // Writes what was set last once more, unless the store holds it.
  void set_again(const std::string& key);

  // What the store holds; nothing if there is no such key.
  std::optional<std::string> read(const std::string& key) const;

  // How many values were ignored; the same one twice in a row counts once.
  int64_t rejected() const { return rejected_; }

 private:
  struct Entry {
    int64_t number = 0;
    std::string text;
  };
  std::optional<Entry> verified(const std::string& session, const std::string& key, const std::string& value) const;
  std::string mac(const std::string& session, const std::string& key, const Entry& entry) const;
  void reject(const std::string& key, const std::string& value);

  const StorePtr store_;
  JobSeal seal_;
  int64_t written_ = 0;
  int64_t rejected_ = 0;
  std::map<std::string, std::string> own_;       // By key, the values that this launcher wrote,
  std::map<std::string, Entry> accepted_;        // those that it believed,
  std::map<std::string, size_t> last_rejected_;  // and hashes of those that it did not.
};

}  // namespace narrowcast::launcher
