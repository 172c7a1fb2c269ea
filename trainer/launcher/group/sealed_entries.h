// Entries of the launchers' store that only those who know the job's secret can write.
//
// Whoever reaches the store can write there, too. With a secret each entry carries a proof of who wrote it, as what, in
// which run of the job, and when: "narrowcast-seal-1 MAC N TEXT". N counts the entries that its writer wrote under this
// key. MAC is the HMAC-SHA-256, by the secret, of the job's name, the session, the key, N and the text, each with its
// length. The session is a number that nobody can foretell, made up by the launcher that serves the store: what was
// written in another run proves nothing in this one. An entry that does not prove itself, or is older than what was
// read before, is ignored and counted: the reader keeps the last good one, and the writer writes its entry again.
//
// A stranger can overwrite an entry faster than its readers look at it. So each entry is also written as a copy, under
// a key that ends in an HMAC of the entry's key and N. Nobody without the secret can foretell the key of the next copy.
// Therefore:
//   - a copy that exists proves that its writer lived when it wrote number N, whatever the copy holds by now;
//   - a reader that finds the entry spoiled takes the text from its copy.
// A stranger who lists the store's keys can still remove copies. Readers then see spoiled entries (`spoiled`).
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
  // Newest copies of an entry that its writer keeps: a reader may miss as many before it has to find the entry intact.
  static constexpr int64_t kCopies = 128;

  SealedEntries(StorePtr store, JobSeal seal) : store_(std::move(store)), seal_(std::move(seal)) {}

  c10d::Store& store() const { return *store_; }
  bool has_secret() const { return seal_.secret.has_value(); }
  const std::string& session() const { return seal_.session; }
  void begin_session(const std::string& session) { seal_.session = session; }

  // Writes an entry and, with a secret, its copy.
  void set(const std::string& key, const std::string& text);

  // The text of an entry that was read: `value`, or the last one that proved to be of its writer if this one does not;
  // nothing if there was none. Throws CorruptInputError without a secret for an entry of those who have one.
  std::optional<std::string> open(const std::string& key, const std::string& value, size_t most_bytes = kMostBytes);

  // As open, of what the store holds; what was read last where there is no such key.
  std::optional<std::string> get(const std::string& key, size_t most_bytes = kMostBytes);

  // The same for one entry in another session, which is read once: nothing unless it proves itself.
  void set_in(const std::string& session, const std::string& key, const std::string& text);
  std::optional<std::string> get_in(const std::string& session, const std::string& key);

  // Writes what was set last once more, as a new entry, unless the store holds it.
  void set_again(const std::string& key);

  // How many entries this launcher has written under `key`.
  int64_t written(const std::string& key) const;
  // With a secret, how many entries the writer of `key` has written, as far as reads of it have proven by now; else 0.
  int64_t newest(const std::string& key) const;
  // Reads of `key` start as if entry `number` had been read. For keys whose first copies may be gone.
  void begin_at(const std::string& key, int64_t number);

  // With a secret, how many reads of `key` found something else than an entry of its writer, or nothing where one was.
  int64_t spoiled(const std::string& key) const;

  // What the store holds; nothing if there is no such key.
  std::optional<std::string> read(const std::string& key) const;

  // How many values were ignored; the same one twice in a row counts once.
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
    std::string value;  // in the store
    int64_t number = 0;
  };
  // What is known of an entry that this launcher reads.
  struct Known {
    std::optional<Entry> accepted = {};
    int64_t newest = 0;                        // number, of which at least the key of the copy was seen
    int64_t reads_without_news = 0;            // since the last one with a new number
    int64_t spoiled = 0;                       // reads
    std::optional<size_t> rejected_hash = {};  // of the value that was rejected last
  };
  std::optional<Entry> verified(const std::string& session, const std::string& key, const std::string& value) const;
  std::string mac(const std::string& session, const std::string& key, const Entry& entry) const;
  std::string copy_key(const std::string& key, int64_t number) const;
  bool accept(const std::string& key, const std::string& value, size_t most_bytes);
  void follow_copies(const std::string& key, size_t most_bytes);
  std::optional<std::string> accepted_text(const std::string& key) const;
  void reject(const std::string& key, const std::string& value);

  const StorePtr store_;
  const std::string nothing_ = program::random_nonce();  // that no key holds
  JobSeal seal_;
  int64_t rejected_ = 0;
  std::map<std::string, Own> own_;      // by key
  std::map<std::string, Known> known_;  // by key
};

}  // namespace narrowcast::launcher
