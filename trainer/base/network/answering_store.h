// A store whose operations always end. c10d's TCPStore waits without limit for a server that is stopped or is not a
// store.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

namespace narrowcast::network {

// Returns body()'s result, or nothing if body() does not return within `limit`, or before gives_up() returns true,
// which is called about every 100 ms. Then body() continues on a detached thread, so it must share the ownership of all
// that it uses. Time in which this process is stopped does not count. Throws body()'s exception.
template <class Result>
std::optional<Result> within(std::chrono::milliseconds limit, std::function<Result()> body,
                             const std::function<bool()>& gives_up = nullptr) {
  constexpr std::chrono::milliseconds kSlice{100};
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(body));
  std::future<Result> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  std::future_status status = std::future_status::timeout;
  for (std::chrono::milliseconds left = limit; status != std::future_status::ready && left.count() > 0;
       left -= kSlice) {
    status = result.wait_for(std::min(left, kSlice));
    if (status != std::future_status::ready && gives_up && gives_up()) {
      break;
    }
  }
  return status == std::future_status::ready ? std::optional<Result>(result.get()) : std::nullopt;
}

// Forwards all operations to another store, each on a thread. An operation that is not answered within `patience`, plus
// the time for which it waits for keys, throws c10::DistNetworkError "the store at PLACE does not answer". Operations
// of several threads run one after the other. Thread-safe.
class AnsweringStore : public c10d::Store {
 public:
  // `has_moved` tells that the store is served elsewhere now. It is called before each operation and about every 100 ms
  // of it, and must not use this store. Once it returns true, operations throw c10::DistNetworkError. Null: never.
  AnsweringStore(c10::intrusive_ptr<c10d::Store> store, std::string place, std::chrono::milliseconds patience,
                 std::function<bool()> has_moved = nullptr);

  void set_patience(std::chrono::milliseconds patience);

  // From now on, waits for keys also end when `why` returns a text: they throw c10::DistNetworkError with it. `why` is
  // called about every 100 ms of a wait, on the thread that waits, and may use this store. Null: waits end as before.
  void set_interruption(std::function<std::string()> why);

  // Another connection to the store; its operations have no such limit.
  c10::intrusive_ptr<c10d::Store> clone() override;

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override;
  void queuePush(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> queuePop(const std::string& key, bool block) override;
  int64_t queueLen(const std::string& key) override;
  std::vector<std::string> listKeys() override;

 private:
  void check_is_there() const;
  std::function<std::string()> interruption();
  bool arrive(const std::vector<std::string>& keys, std::chrono::milliseconds left);
  template <class Operation>
  auto ask(std::chrono::milliseconds waiting, Operation operation);
  template <class Operation>
  void send(std::chrono::milliseconds waiting, Operation operation);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string place_;
  const std::function<bool()> has_moved_;
  std::mutex mutex_;  // Held during an operation, so that `patience` excludes waiting for another one.
  std::chrono::milliseconds patience_;
  std::function<std::string()> interruption_;
};

}  // namespace narrowcast::network
