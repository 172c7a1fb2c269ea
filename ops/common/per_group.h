// What a process keeps for each of its process groups.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

namespace narrowcast {

// One T for each process group. A weak reference to the group keeps its address from being another group's and lets the
// group end. A group does not tell when it ends: what ended groups had is freed by the next call for any group, unless
// somebody else still holds it. Thread-safe. Nothing may wait for other ranks under the lock, as ranks may be threads
// of one process.
template <class T>
class PerGroup {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Values = std::vector<std::shared_ptr<T>>;

  // The group's T. If it has none, it gets what make(the other groups' values) returns.
  template <class Make>
  std::shared_ptr<T> of(const Group& group, const Make& make) {
    Values ended;  // Destroyed when the lock is released: a T may wait for a thread.
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

  // The group's T, made without arguments at the first call.
  std::shared_ptr<T> of(const Group& group) {
    return of(group, [](const Values&) { return std::make_shared<T>(); });
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

// Values by keys that can be compared for equality, for PerGroup<KeptByKey<...>>. Thread-safe.
template <class Key, class Value>
class KeptByKey {
 public:
  // Null if nothing is kept under that key.
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
