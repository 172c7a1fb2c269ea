// Data that a process keeps for each of its process groups.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

namespace narrowcast {

// One T for each process group. The entry's weak reference lets the group end, and keeps its address from being reused
// by another group. A group gives no notice when it ends: the T of an ended group is freed by the next call for any
// group, unless it is still referenced elsewhere. Thread-safe. Code that runs under the lock must not wait for other
// ranks, as ranks may be threads of one process.
template <class T>
class PerGroup {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Values = std::vector<std::shared_ptr<T>>;

  // The group's T. The first call makes it by make(the other groups' values).
  template <class Make>
  std::shared_ptr<T> of(const Group& group, const Make& make) {
    Values ended;  // Destroyed after the lock is released: a T may wait for a thread.
    const std::lock_guard<std::mutex> lock(mutex_);
    ended = take_ended();
    const auto known = entries_.find(group.get());
    if (known != entries_.end()) {
      return known->second.value;
    }
    Values others;
    for (const auto& [address, entry] : entries_) {
      others.push_back(entry.value);
    }
    auto value = make(others);
    entries_.emplace(group.get(), Entry{Weak(group), value});
    return value;
  }

  // The group's T, default-constructed by the first call.
  std::shared_ptr<T> of(const Group& group) {
    return of(group, [](const Values&) { return std::make_shared<T>(); });
  }

  // Frees the values of ended groups, as a call of `of` does.
  void free_ended() {
    Values ended;
    const std::lock_guard<std::mutex> lock(mutex_);
    ended = take_ended();
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10d::ProcessGroup>;
  struct Entry {
    Weak group;
    std::shared_ptr<T> value;
  };

  Values take_ended() {
    Values ended;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      if (entry->second.group.expired() && entry->second.value.use_count() == 1) {
        ended.push_back(std::move(entry->second.value));
        entry = entries_.erase(entry);
      } else {
        ++entry;
      }
    }
    return ended;
  }

  std::mutex mutex_;
  std::map<const c10d::ProcessGroup*, Entry> entries_;
};

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

  void keep(Key key, std::shared_ptr<const Value> value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.emplace_back(std::move(key), std::move(value));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<Key, std::shared_ptr<const Value>>> values_;
};

}  // namespace narrowcast
