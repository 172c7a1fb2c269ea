// Entries of the launchers' store that can be written only with the job's secret.
//
// Everybody who can connect to the store can write to it. With a secret each entry therefore carries a proof of its
// writer, its key, its run of the job and its order: "narrowcast-seal-1 MAC N TEXT".
//   - N counts the entries that the writer has written under this key.
//   - MAC is the HMAC-SHA-256, with the secret as its key, of the job's name, the session, the entry's key, N and the
//     text, each with its length.
//   - The session is a random number, made by the launcher that serves the store. Entries of another run are therefore
//     invalid in this one.
// A reader ignores and counts an entry that is invalid or older than the last one, and keeps the last valid one. The
// writer then writes its entry again.
//
// An attacker can overwrite an entry faster than its readers read it. So each entry is also written as a copy, under a
// key that ends in an HMAC of the entry's key and N. The key of the next copy cannot be predicted without the secret.
// Therefore:
//   - the existence of a copy proves that its writer lived when it wrote number N, even if the copy was overwritten;
//   - a reader takes the text from the copy if the entry is spoiled (overwritten or removed).
// An attacker who lists the store's keys can still remove copies. Readers then count spoiled entries (`spoiled`).
//
// Reads never wait for a key, because an attacker may have removed it.
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

// Data that the launchers of a run share.
struct JobSeal {
  std::optional<program::JobSecret> secret = {};  // Without a secret, entries are plain texts.
  std::string job = {};                           // --rdzv_id: entries of another job are invalid in this one.
  std::string session = {};                       // The session of the run; empty until it is known.
};

// One launcher's access to the store. Not thread-safe.
class SealedEntries {
 public:
  // Largest entry that is read.
  static constexpr size_t kMostBytes = size_t{1} << 20;
  // Number of copies of an entry that its writer keeps. A reader that has missed more of them must find the entry
  // itself intact.
  static constexpr int64_t kCopies = 128;

  SealedEntries(StorePtr store, JobSeal seal) : store_(std::move(store)), seal_(std::move(seal)) {}

  c10d::Store& store() const { return *store_; }
  // From now on uses another connection to the same store.
  void reconnect(StorePtr store) { store_ = std::move(store); }
  bool has_secret() const { return seal_.secret.has_value(); }
  const std::string& job() const { return seal_.job; }
  const std::string& session() const { return seal_.session; }
  void begin_session(const std::string& session) { seal_.session = session; }

  // Writes an entry and, with a secret, its copy.
  void set(const std::string& key, const std::string& text);

  // Returns the text of an entry whose stored value is `value`. If the value is invalid, returns the last valid text,
  // or nothing if there was none. Throws CorruptInputError without a secret if the entry is sealed.
  std::optional<std::string> open(const std::string& key, const std::string& value, size_t most_bytes = kMostBytes);

  // Reads the entry from the store and opens it. Returns the last valid text if the key does not exist.
  std::optional<std::string> get(const std::string& key, size_t most_bytes = kMostBytes);

  // The same for one entry in another session, which is read once. get_in returns nothing unless the entry is valid.
  void set_in(const std::string& session, const std::string& key, const std::string& text);
  std::optional<std::string> get_in(const std::string& session, const std::string& key);

  // Writes the last text once more, as a new entry, unless the store still holds it.
  void set_again(const std::string& key);

  // Number of entries that this launcher has written under `key`.
  int64_t written(const std::string& key) const;
  // With a secret, returns the number of entries that the writer of `key` has provably written, as found by reads so
  // far. Returns 0 otherwise.
  int64_t newest(const std::string& key) const;
  // Makes reads of `key` start as if entry `number` had been read. For keys whose first copies may be gone.
  void begin_at(const std::string& key, int64_t number);

  // With a secret, returns the number of reads of `key` that found an invalid entry, or no entry after an earlier one.
  int64_t spoiled(const std::string& key) const;

  // Removes the entry and its copies, which nobody reads any more.
  void remove(const std::string& key);

  // Returns the stored value; nothing if the key does not exist.
  std::optional<std::string> read(const std::string& key) const;

  // Number of values that were ignored. The same value twice in a row counts once.
  int64_t rejected() const { return rejected_; }

 private:
  struct Entry {
    int64_t number = 0;
    std::string text;
  };
  // An entry that this launcher wrote.
  struct Own {
    std::string session;
    std::string text;
    std::string value;  // as stored
    int64_t number = 0;
  };
  // The state of an entry that this launcher reads.
  struct Known {
    std::optional<Entry> accepted = {};
    int64_t newest = 0;                        // largest number whose entry or copy was found
    int64_t reads_without_news = 0;            // since the last read with a new number
    int64_t spoiled = 0;                       // number of reads
    std::optional<size_t> rejected_hash = {};  // hash of the value that was rejected last
  };
  std::optional<Entry> verified(const std::string& session, const std::string& key, const std::string& value) const;
  std::string mac(const std::string& session, const std::string& key, const Entry& entry) const;
  std::string copy_key(const std::string& key, int64_t number) const;
  bool accept(const std::string& key, const std::string& value, size_t most_bytes);
  void follow_copies(const std::string& key, size_t most_bytes);
  std::optional<std::string> accepted_text(const std::string& key) const;
  void reject(const std::string& key, const std::string& value);

  StorePtr store_;
  const std::string nothing_ = program::random_nonce();  // a random text that no key holds
  JobSeal seal_;
  int64_t rejected_ = 0;
  std::map<std::string, Own> own_;      // by key
  std::map<std::string, Known> known_;  // by key
};

}  // namespace narrowcast::launcher
