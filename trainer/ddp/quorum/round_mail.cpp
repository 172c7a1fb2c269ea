#include "trainer/ddp/quorum/round_mail.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "ops/common/backend_errors.h"

namespace narrowcast {

RoundMail::RoundMail(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int64_t> first_ranks, int64_t own_group,
                     int64_t message_bytes)
    : backend_(std::move(backend)),
      first_ranks_(std::move(first_ranks)),
      own_group_(own_group),
      message_bytes_(message_bytes),
      inbox_(first_ranks_.size()) {
  for (int64_t group = 0; group < std::ssize(inbox_); ++group) {
    if (group != own_group_) post_receive(group);
  }
}

template <class Body>
auto RoundMail::with_peer(const char* action, int64_t group, const Body& body) const {
  return with_backend_errors(first_ranks_.at(own_group_),
                             c10::str("an outer round: ", action, " rank ", first_ranks_.at(group)), body);
}

// The number of a message is its tag: over several connections, two messages with the same tag might overtake each
// other.
void RoundMail::post_receive(int64_t group) {
  Inbox& inbox = inbox_.at(group);
  inbox.memory = at::empty({message_bytes_}, at::kByte);
  std::vector<at::Tensor> tensors = {inbox.memory};
  inbox.receive = with_peer("receiving from", group, [&] {
    return backend_->recv(tensors, static_cast<int>(first_ranks_.at(group)), static_cast<int>(inbox.posted));
  });
  ++inbox.posted;
}

void RoundMail::look() {
  for (int64_t group = 0; group < std::ssize(inbox_); ++group) {
    Inbox& inbox = inbox_.at(group);
    if (inbox.receive != nullptr && inbox.receive->isCompleted()) {
      with_peer("receiving from", group, [&] { inbox.receive->wait(); });
      inbox.received.push_back(std::exchange(inbox.memory, {}));
      inbox.receive.reset();
    }
  }
}

void RoundMail::drop_finished(int64_t group) {
  auto& sends = inbox_.at(group).sends;
  while (!sends.empty() && sends.front()->isCompleted()) {
    with_peer("sending to", group, [&] { sends.front()->wait(); });
    sends.pop_front();
  }
}

void RoundMail::send(const at::Tensor& message) {
  TORCH_INTERNAL_ASSERT(message.numel() == message_bytes_);
  const auto most = static_cast<size_t>(std::max<int64_t>(2, kMostUnsentBytes / message_bytes_));
  for (int64_t group = 0; group < std::ssize(inbox_); ++group) {
    Inbox& inbox = inbox_.at(group);
    if (group == own_group_) {
      inbox.received.push_back(message);
      continue;
    }
    drop_finished(group);
    while (inbox.sends.size() >= most) {
      with_peer("sending to", group, [&] { inbox.sends.front()->wait(); });
      inbox.sends.pop_front();
    }
    std::vector<at::Tensor> tensors = {message};
    inbox.sends.push_back(with_peer("sending to", group, [&] {
      return backend_->send(tensors, static_cast<int>(first_ranks_.at(group)), static_cast<int>(sent_));
    }));
    bytes_sent_ += message_bytes_;
  }
  ++sent_;
}

std::vector<int64_t> RoundMail::groups_with_message() const {
  std::vector<int64_t> groups;
  for (int64_t group = 0; group < std::ssize(inbox_); ++group) {
    if (has_message(group)) groups.push_back(group);
  }
  return groups;
}

at::Tensor RoundMail::take(int64_t group) {
  Inbox& inbox = inbox_.at(group);
  at::Tensor message = std::move(inbox.received.front());
  inbox.received.pop_front();
  ++inbox.taken;
  if (group != own_group_) post_receive(group);
  return message;
}

bool RoundMail::has_sent_all() {
  for (int64_t group = 0; group < std::ssize(inbox_); ++group) drop_finished(group);
  return std::ranges::all_of(inbox_, [](const Inbox& inbox) { return inbox.sends.empty(); });
}

}  // namespace narrowcast
