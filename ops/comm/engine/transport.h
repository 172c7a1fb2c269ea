// The point-to-point messages of one exchange.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace narrowcast::engine {

// One message of an exchange. Two messages between the same two ranks in the
// same direction differ in their channel.
struct Message {
  at::Tensor bytes;     // uint8, contiguous, on the CPU; both sides agree on its size.
  int64_t peer = 0;     // The other rank.
  int64_t channel = 0;  // 0 <= channel < kChannels.
};

// Something else than a message that an exchange waits for, such as a word in memory that ranks share.
class Awaited {
 public:
  virtual ~Awaited() = default;

  // Whether what is waited for has come.
  virtual bool is_there() const = 0;

  // Returns when it has come, after wake, or after `at_most`; now and then for no reason.
  virtual void wait(std::chrono::milliseconds at_most) const = 0;

  // Ends a wait of another thread.
  virtual void wake() const = 0;

  // Why it will never come; empty if it may.
  virtual std::string why_lost() const = 0;
};

struct TransportOptions {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::string exchange;  // Its name in errors.
  // Which exchange of the group this is, counted alike on all ranks; its messages cannot meet those of others.
  int64_t sequence = 0;
  // Runs whenever the exchange is about to wait for the network, and after each interrupt_wait.
  std::function<void()> before_waiting = [] {};
};

// Sends and receives for one exchange through reserved tags, beside the
// collectives of the same backend. A message that fails, because its peer is
// gone or silent for the group's timeout, throws c10::DistBackendError that
// names this rank, the peer and the exchange. So does one that lacks kLeastBytes or
// more of what its receiver expects: Gloo does not tell how many bytes
// came, so that a receive writes as many random ones to the end of its memory, which a
// whole message replaces. (With one that is longer, Gloo ends the receiver's process:
// "op.preamble.length <= op.nbytes".) Used by one thread, but for interrupt_wait and
// give_up.
class Transport {
 public:
  static constexpr int64_t kChannels = 1024;

  // Shorter messages cannot be told from none: see above.
  static constexpr int64_t kLeastBytes = 16;

  explicit Transport(TransportOptions options);

  int64_t rank() const { return options_.backend->getRank(); }
  int64_t world_size() const { return options_.backend->getSize(); }

  // The ranks that are `distance`, 1 to world_size() - 1, before and after this one in the ring of ranks. The receiver
  // at a distance before is the sender at that distance after.
  int64_t peer_before(int64_t distance) const { return (rank() + world_size() - distance) % world_size(); }
  int64_t peer_after(int64_t distance) const { return (rank() + distance) % world_size(); }

  // Lets `message` arrive in message.bytes. Returns what wait_receive takes. An
  // empty message is taken for arrived, as its sender skips it.
  int64_t post_receive(const Message& message);

  // Blocks until that message has arrived. May be called again.
  void wait_receive(int64_t receive);

  // Hands message.bytes to the network without waiting for the peer; skips an
  // empty message. The bytes must not change before wait_sends has returned.
  void send(const Message& message);

  // Blocks until `awaited`, which comes from rank `peer`, is there. A peer that is gone, or silent for the group's
  // timeout, is the error that it is with messages.
  void wait_for(Awaited& awaited, int64_t peer);

  // Blocks until everything sent so far has left this rank.
  void wait_sends();

  // If the other thread is waiting here, lets it run before_waiting before it waits on. Any thread may call it.
  void interrupt_wait();

  // Makes the wait in progress, if any, and all later calls throw. Any thread may call it.
  void give_up();

 private:
  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;  // Null: nothing to wait for, or no longer.
    int64_t peer = 0;
    at::Tensor received;  // Where a received message lies.
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
  std::mutex mutex_;  // Guards what follows against the other threads.
  std::vector<Pending> receives_;
  std::vector<Pending> sends_;
  c10::intrusive_ptr<c10d::Work> waiting_;  // Null: not waiting for a message.
  const Awaited* awaiting_ = nullptr;       // Null: not waiting for anything else.
  bool interrupted_ = false;                // Since before_waiting ran last.
  bool given_up_ = false;
};

}  // namespace narrowcast::engine
