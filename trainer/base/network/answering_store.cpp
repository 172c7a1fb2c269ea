#include "trainer/base/network/answering_store.h"

#include <c10/util/Exception.h>

#include <type_traits>

namespace narrowcast::network {

using c10d::Store;
using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

namespace {

constexpr milliseconds kNotAtAll{0};
constexpr milliseconds kSlice{100};  // of a wait that can be interrupted

}  // namespace

AnsweringStore::AnsweringStore(c10::intrusive_ptr<Store> store, std::string place, milliseconds patience,
                               std::function<bool()> has_moved)
    : Store(store->getTimeout()),
      store_(std::move(store)),
      place_(std::move(place)),
      has_moved_(std::move(has_moved)),
      patience_(patience) {}

void AnsweringStore::set_patience(milliseconds patience) {
  const std::lock_guard<std::mutex> lock(mutex_);
  patience_ = patience;
}

void AnsweringStore::set_interruption(std::function<std::string()> why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  interruption_ = std::move(why);
}

std::function<std::string()> AnsweringStore::interruption() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return interruption_;
}

void AnsweringStore::check_is_there() const {
  TORCH_CHECK_WITH(DistNetworkError, !has_moved_ || !has_moved_(), "the store at ", place_,
                   " has moved: another launcher serves it");
}

// The operation must own copies of all that it uses: its thread may outlive this call.
template <class Operation>
auto AnsweringStore::ask(milliseconds waiting, Operation operation) {
  using Result = std::invoke_result_t<Operation, Store&>;
  const std::lock_guard<std::mutex> lock(mutex_);
  check_is_there();
  std::optional<Result> result = within<Result>(
      waiting + patience_, [store = store_, operation] { return operation(*store); }, has_moved_);
  if (!result.has_value()) {
    check_is_there();
  }
  TORCH_CHECK_WITH(DistNetworkError, result.has_value(), "the store at ", place_, " does not answer");
  return *std::move(result);
}

template <class Operation>
void AnsweringStore::send(milliseconds waiting, Operation operation) {
  ask(waiting, [operation](Store& store) {
    operation(store);
    return true;
  });
}

c10::intrusive_ptr<Store> AnsweringStore::clone() {
  return ask(timeout_, [](Store& store) { return store.clone(); });
}

void AnsweringStore::set(const std::string& key, const Bytes& value) {
  send(kNotAtAll, [=](Store& store) { store.set(key, value); });
}

Bytes AnsweringStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  return ask(kNotAtAll, [=](Store& store) { return store.compareSet(key, expected, desired); });
}

Bytes AnsweringStore::get(const std::string& key) {
  if (interruption()) {
    wait({key}, timeout_);
  }
  return ask(timeout_, [=](Store& store) { return store.get(key); });
}

int64_t AnsweringStore::add(const std::string& key, int64_t value) {
  return ask(kNotAtAll, [=](Store& store) { return store.add(key, value); });
}

bool AnsweringStore::deleteKey(const std::string& key) {
  return ask(kNotAtAll, [=](Store& store) { return store.deleteKey(key); });
}

bool AnsweringStore::check(const Keys& keys) {
  return ask(kNotAtAll, [=](Store& store) { return store.check(keys); });
}

int64_t AnsweringStore::getNumKeys() {
  return ask(kNotAtAll, [](Store& store) { return store.getNumKeys(); });
}

void AnsweringStore::wait(const Keys& keys) { wait(keys, timeout_); }

void AnsweringStore::wait(const Keys& keys, const milliseconds& timeout) {
  const std::function<std::string()> interrupted = interruption();
  if (!interrupted) {
    send(timeout, [=](Store& store) { store.wait(keys, timeout); });
    return;
  }
  for (milliseconds left = timeout; !arrive(keys, left); left -= kSlice) {
    const std::string why = interrupted();
    TORCH_CHECK_WITH(DistNetworkError, why.empty(), why);
  }
}

// Waits for one slice of the time that is left. Returns whether the keys exist. The last slice throws as the whole wait
// does.
bool AnsweringStore::arrive(const Keys& keys, milliseconds left) {
  const milliseconds slice = std::min(left, kSlice);
  try {
    send(slice, [=](Store& store) { store.wait(keys, slice); });
    return true;
  } catch (const c10::DistStoreError&) {
    if (left <= kSlice) {
      throw;
    }
    return false;
  }
}

void AnsweringStore::setTimeout(const milliseconds& timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  timeout_ = timeout;
  store_->setTimeout(timeout);
}

void AnsweringStore::append(const std::string& key, const Bytes& value) {
  send(kNotAtAll, [=](Store& store) { store.append(key, value); });
}

std::vector<Bytes> AnsweringStore::multiGet(const Keys& keys) {
  if (interruption()) {
    wait(keys, timeout_);
  }
  return ask(timeout_, [=](Store& store) { return store.multiGet(keys); });
}

void AnsweringStore::multiSet(const Keys& keys, const std::vector<Bytes>& values) {
  send(kNotAtAll, [=](Store& store) { store.multiSet(keys, values); });
}

bool AnsweringStore::hasExtendedApi() const { return store_->hasExtendedApi(); }

void AnsweringStore::queuePush(const std::string& key, const Bytes& value) {
  send(kNotAtAll, [=](Store& store) { store.queuePush(key, value); });
}

Bytes AnsweringStore::queuePop(const std::string& key, bool block) {
  return ask(block ? timeout_ : kNotAtAll, [=](Store& store) { return store.queuePop(key, block); });
}

int64_t AnsweringStore::queueLen(const std::string& key) {
  return ask(kNotAtAll, [=](Store& store) { return store.queueLen(key); });
}

Keys AnsweringStore::listKeys() {
  return ask(kNotAtAll, [](Store& store) { return store.listKeys(); });
}

}  // namespace narrowcast::network
