// Sends this group's messages to all other groups, and receives theirs, without waiting for a group that stands still.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <deque>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace narrowcast {

// Messages that a receiver has not taken yet stay in this rank's memory, up to this many bytes or two messages. Then
// `send` waits for the receiver. All receivers share the memory of a message.
inline constexpr int64_t kMostUnsentBytes = int64_t{1} << 30;

// The messages between the first ranks of the groups. One thread uses it. Throws c10::DistBackendError naming this rank
// and the peer if a peer's connection has ended, or if `send` waits for longer than the backend's time limit.
class RoundMail {
 public:
  // `backend`: its works report isCompleted. Its ranks `first_ranks`, by group, make one each; null for one group.
  RoundMail(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int64_t> first_ranks, int64_t own_group,
            int64_t message_bytes);

  // Sends the own group's next message to all other groups, uint8 [message_bytes] on the CPU, and keeps it for
  // this group as well. It must not change.
  void send(const at::Tensor& message);

  // Takes what has arrived. Waits for nothing.
  void look();

  // Groups that have a message which was not taken, in ascending order, as of the last look.
  std::vector<int64_t> groups_with_message() const;
  bool has_message(int64_t group) const { return !inbox_.at(group).received.empty(); }
  // The group's oldest message.
  const at::Tensor& oldest(int64_t group) const { return inbox_.at(group).received.front(); }
  // Takes the group's oldest message away.
  at::Tensor take(int64_t group);
  // Number of messages of the group that were taken.
  int64_t taken(int64_t group) const { return inbox_.at(group).taken; }

  // Whether every message has left this rank; see StripedMessages::send.
  bool has_sent_all();

  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t messages_sent() const { return sent_; }

 private:
  struct Inbox {
    std::deque<at::Tensor> received = {};  // At most one of another group: later ones wait in the connection.
    int64_t taken = 0;
    int64_t posted = 0;                                     // Number of receives so far.
    at::Tensor memory = {};                                 // for the receive in progress
    c10::intrusive_ptr<c10d::Work> receive = {};            // Null for the own group, and while a message waits.
    std::deque<c10::intrusive_ptr<c10d::Work>> sends = {};  // to the group, in order; the first of them is unfinished
  };
  void post_receive(int64_t group);
  void drop_finished(int64_t group);
  template <class Body>
  auto with_peer(const char* action, int64_t group, const Body& body) const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::vector<int64_t> first_ranks_;
  const int64_t own_group_;
  const int64_t message_bytes_;
  std::vector<Inbox> inbox_;  // By group.
  int64_t sent_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace narrowcast
