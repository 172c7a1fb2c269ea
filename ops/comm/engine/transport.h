// The point-to-point messages of one exchange.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include <narrowcast/export.h>

namespace narrowcast::engine {

// One message of an exchange. Two messages of the same sender to the same receiver must differ in their channel.
struct Message {
  at::Tensor bytes;     // uint8, contiguous, on the CPU; equal size on both sides.
  int64_t peer = 0;     // The other rank.
  int64_t channel = 0;  // 0 <= channel < kChannels.
};

// An event other than a message, for instance a word in memory that ranks share.
class Awaited {
 public:
  virtual ~Awaited() = default;

  // Returns whether the event has happened.
  virtual bool is_there() const = 0;

  // Returns when the event has happened, after wake, or after `at_most`. May also return spuriously.
  virtual void wait(std::chrono::milliseconds at_most) const = 0;

  // Ends a wait of another thread.
  virtual void wake() const = 0;

  // Returns why the event can no longer happen; empty if it can.
  virtual std::string why_lost() const = 0;
};

struct TransportOptions {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::string exchange;  // Its name in errors.
  // Number of the exchange in the group, equal on all ranks. It separates the messages of different exchanges.
  int64_t sequence = 0;
  // Called before each wait for the network, and after each interrupt_wait.
  std::function<void()> before_waiting = [] {};
  // The most exchanges that are in flight beside each other, this one included. It changes only when none is.
  size_t most_in_flight = 1;
};

// Sends and receives the messages of one exchange through reserved tags, beside the collectives of the same backend.
// Throws c10::DistBackendError naming this rank, the peer and the exchange in these cases:
//   - The peer is gone, or silent for the group's timeout.
//   - A message is shorter than its receiver expects by kLeastBytes or more. Gloo does not report the number of
//     received bytes. A receive therefore first writes kLeastBytes random bytes to the end of its memory, which a
//     complete message replaces.
// If a message is longer than its receiver expects, Gloo ends the receiver's process ("op.preamble.length <=
// op.nbytes"). Not thread-safe, except interrupt_wait and give_up.
class NARROWCAST_EXPORT Transport {
 public:
  static constexpr int64_t kChannels = 1024;

  // A missing message can only be detected if its size is at least this.
  static constexpr int64_t kLeastBytes = 16;

  explicit Transport(TransportOptions options);

  int64_t rank() const { return options_.backend->getRank(); }
  int64_t world_size() const { return options_.backend->getSize(); }

  // The ranks `distance` places (1 to world_size() - 1) before and after this one in the ring of ranks. If every
  // rank receives from its peer_before(distance), every rank sends to its peer_after(distance).
  int64_t peer_before(int64_t distance) const { return (rank() + world_size() - distance) % world_size(); }
  int64_t peer_after(int64_t distance) const { return (rank() + distance) % world_size(); }

  // TransportOptions::most_in_flight.
  size_t most_in_flight() const { return options_.most_in_flight; }

  // Posts a receive of `message` into message.bytes. Returns the argument for wait_receive. An empty message counts as
  // received, because its sender skips it.
  int64_t post_receive(const Message& message);

  // Blocks until that message has arrived. May be called again.
  void wait_receive(int64_t receive);

  // Sends message.bytes without waiting for the peer; skips an empty message. The bytes must not change before
  // wait_sends has returned.
  void send(const Message& message);

  // Blocks until `awaited`, an event of rank `peer`, has happened. A peer that is gone, or silent for the group's
  // timeout, is the same error as for messages.
  void wait_for(Awaited& awaited, int64_t peer);

  // Blocks until all messages sent so far have left this rank.
  void wait_sends();

  // If the transport's thread is in a wait, makes it call before_waiting before it continues to wait. Any thread may
  // call it.
  void interrupt_wait();

  // Makes the wait in progress, if any, and all later calls throw the c10::DistBackendError `why`, which is not empty.
  // The first reason counts. Any thread may call it.
  void give_up(const std::string& why);

 private:
  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;  // Null: empty or already waited for.
    int64_t peer = 0;
    at::Tensor received;  // Memory of a received message.
  };
  void check(const Message& message) const;
  int tag(int64_t channel) const;
  void throw_if_given_up() const;
  // Registers the work that `post` returns, so that give_up finds it.
  void add(std::vector<Pending>& works, Pending pending, const std::function<c10::intrusive_ptr<c10d::Work>()>& post);
  void wait(Pending& pending, const char* action);
  void check_whole(const Pending& receive) const;
  bool wait_once(const Pending& pending, const char* action);
  void set_waiting(c10::intrusive_ptr<c10d::Work> work);
  void set_awaiting(const Awaited* awaited);
  bool was_interrupted();

  const TransportOptions options_;
  std::mutex mutex_;  // Guards the members below.
  std::vector<Pending> receives_;
  std::vector<Pending> sends_;
  c10::intrusive_ptr<c10d::Work> waiting_;  // Null: not waiting for a message.
  const Awaited* awaiting_ = nullptr;       // Null: not waiting for anything else.
  bool interrupted_ = false;                // Since the last call of before_waiting.
  std::string given_up_;                    // Why; empty if it is not.
};

}  // namespace narrowcast::engine
