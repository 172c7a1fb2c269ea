// Data that a process keeps for each of its process groups, or of its backends.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

namespace narrowcast {

// One T for each owner: a process group or a backend. The entry's weak reference lets the owner end, and keeps its
// address from being reused by another one. An owner gives no notice when it ends: the T of an ended owner is freed by
// the next call for any owner, unless it is still referenced elsewhere. Thread-safe. Code that runs under the lock must
// not wait for other ranks, as ranks may be threads of one process.
template <class Owner, class T>
class PerOwner {
 public:
  using Values = std::vector<std::shared_ptr<T>>;

  // The owner's T. The first call makes it by make(the other owners' values).
  template <class Make>
  std::shared_ptr<T> of(const c10::intrusive_ptr<Owner>& owner, const Make& make) {
    Values ended;  // Destroyed after the lock is released: a T may wait for a thread.
    const std::lock_guard<std::mutex> lock(mutex_);
    ended = take_ended();
    const auto known = entries_.find(owner.get());
    if (known != entries_.end()) {
      return known->second.value;
    }
    Values others;
    for (const auto& [address, entry] : entries_) {
      others.push_back(entry.value);
    }
    auto value = make(others);
    entries_.emplace(owner.get(), Entry{Weak(owner), value});
    return value;
  }

  // The owner's T, default-constructed by the first call.
  std::shared_ptr<T> of(const c10::intrusive_ptr<Owner>& owner) {
    return of(owner, [](const Values&) { return std::make_shared<T>(); });
  }

  // Frees the values of ended owners, as a call of `of` does.
  void free_ended() {
    Values ended;
    const std::lock_guard<std::mutex> lock(mutex_);
    ended = take_ended();
  }

 private:
  using Weak = c10::weak_intrusive_ptr<Owner>;
  struct Entry {
    Weak owner;
    std::shared_ptr<T> value;
  };

  Values take_ended() {
    Values ended;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      if (entry->second.owner.expired() && entry->second.value.use_count() == 1) {
        ended.push_back(std::move(entry->second.value));
        entry = entries_.erase(entry);
      } else {
        ++entry;
      }
    }
    return ended;
  }

  std::mutex mutex_;
  std::map<const Owner*, Entry> entries_;
};

template <class T>
using PerGroup = PerOwner<c10d::ProcessGroup, T>;

// Values by keys that can be compared for equality; used as PerGroup<KeptByKey<...>>. Thread-safe.
template <class Key, class Value>
class KeptByKey {
 public:
  // Null if no value is kept for the key.
  std::shared_ptr<const Value> find(const Key& key) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [other, value] : values_) {
      if (other == key) {
        return value;
      }
    }
    return nullptr;
  }

  // The value that was kept last; null if there is none.
  std::shared_ptr<const Value> last() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.empty() ? nullptr : values_.back().second;
  }

  void keep(Key key, std::shared_ptr<const Value> value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.emplace_back(std::move(key), std::move(value));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<Key, std::shared_ptr<const Value>>> values_;
};

}  // namespace narrowcast
