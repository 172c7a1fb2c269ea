#include "ops/comm/connections/messages/peer.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "ops/comm/connections/messages/addresses.h"
#include "ops/common/error_message.h"

namespace narrowcast::connections {
namespace {

constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(FrameHeader));

// A message is cut so that each socket gets several frames, but into no smaller ones.
constexpr int64_t kLeastFrameBytes = int64_t{1} << 13;
constexpr int64_t kFramesPerSocket = 4;

constexpr int kReadsInTurn = 8;

// More than the kernels of both ends keep of a socket's bytes.
constexpr int64_t kMostBytesOnTheWay = int64_t{1} << 26;

// The part of an array that is still to be written or read.
iovec rest_of(const void* array, int64_t size, int64_t done) {
  return {static_cast<char*>(const_cast<void*>(array)) + done, static_cast<size_t>(size - done)};
}

std::vector<Connection> connections_of(std::vector<FileDescriptor> sockets, Peer* peer) {
  std::vector<Connection> connections(sockets.size());
  for (size_t i = 0; i < sockets.size(); ++i) {
    connections[i].peer = peer;
    connections[i].socket = std::move(sockets[i]);
  }
  return connections;
}

// Takes the oldest message of a tag, or returns null.
MessagePtr take(std::map<int64_t, std::deque<MessagePtr>>& by_tag, int64_t tag) {
  const auto found = by_tag.find(tag);
  if (found == by_tag.end()) return nullptr;
  MessagePtr first = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) by_tag.erase(found);
  return first;
}

std::string text_of_sizes(int64_t sent, int64_t expected) {
  return c10::str("it sent a message of ", sent, " bytes instead of the expected ", expected);
}

}  // namespace

bool FrameHeader::is_valid() const {
  return mark == kFrameMark && bytes > 0 && bytes <= kMostFrameBytes && begin >= 0 && total >= bytes &&
         total <= kMostMessageBytes && begin <= total - bytes;
}

Peer::Peer(std::vector<FileDescriptor> sockets, std::shared_ptr<Waiting> waiting, Poller poller, int64_t most_early)
    : waiting_(std::move(waiting)),
      poller_(std::move(poller)),
      connections_(connections_of(std::move(sockets), this)),
      address_(peer_address(connections_.at(0).socket.get())),
      most_early_(most_early) {}

void Peer::check_usable() const {
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

MessagePtr Peer::send(int64_t tag, const at::Tensor& bytes) {
  check_usable();
  if (!why_no_sends_.empty()) throw std::runtime_error(why_no_sends_);
  auto message = c10::make_intrusive<Message>(waiting_, "send", bytes);
  const int64_t total = bytes.numel();
  if (total == 0) {
    message->complete();
    return message;
  }
  const int64_t frames = kFramesPerSocket * std::ssize(connections_);
  outgoing_.push_back({.message = message,
                       .next = {.mark = kFrameMark, .number = sent_++, .tag = tag, .total = total},
                       .frame_bytes = std::clamp((total + frames - 1) / frames, kLeastFrameBytes, kMostFrameBytes)});
  for (Connection& connection : connections_) {
    if (!std::exchange(connection.wants_room, true)) poller_.update(connection);
  }
  return message;
}

MessagePtr Peer::receive(int64_t tag, const at::Tensor& bytes) {
  auto message = c10::make_intrusive<Message>(waiting_, "recv", bytes);
  if (bytes.numel() == 0) {
    message->complete();
    return message;
  }
  const MessagePtr early = take(early_, tag);
  if (early == nullptr) {
    check_usable();
    posted_[tag].push_back(message);
    resume_parked();
    return message;
  }
  early_bytes_ -= early->memory.numel();
  if (early->memory.numel() != bytes.numel()) {
    fail(text_of_sizes(early->memory.numel(), bytes.numel()));
    check_usable();
  }
  early->receive = message;
  if (early->left == 0) early->hand_over();
  resume_parked();
  return message;
}

void Peer::park(Connection& connection) const {
  if (!std::exchange(connection.is_parked, true)) poller_.update(connection);
}

void Peer::resume_parked() {
  for (Connection& connection : connections_) {
    if (connection.is_parked) begin_frame(connection);
  }
}

void Peer::has_left() {
  has_left_ = true;
  resume_parked();
}

void Peer::drop_early() {
  early_.clear();
  early_bytes_ = 0;
}

// Gives the socket a frame of the oldest message that has one left.
bool Peer::take_frame(Connection& connection) {
  if (outgoing_.empty()) return false;
  Outgoing& first = outgoing_.front();
  first.next.bytes = std::min(first.frame_bytes, first.next.total - first.next.begin);
  connection.sent = first.message;
  connection.sent_header = first.next;
  connection.written = 0;
  first.next.begin += first.next.bytes;
  if (first.next.begin == first.next.total) outgoing_.pop_front();
  return true;
}

void Peer::write(Connection& connection) {
  if (connection.sent == nullptr && !take_frame(connection)) {
    connection.wants_room = false;
    poller_.update(connection);
    return;
  }
  const FrameHeader& header = connection.sent_header;
  const uint8_t* const frame = connection.sent->memory.const_data_ptr<uint8_t>() + header.begin;
  std::array<iovec, 2> parts = {rest_of(&header, kHeaderBytes, std::min(connection.written, kHeaderBytes)),
                                rest_of(frame, header.bytes, std::max<int64_t>(0, connection.written - kHeaderBytes))};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t count = ::sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) {
    lose_unless_interrupted("writing to");
    return;
  }
  connection.written += count;
  if (connection.written < kHeaderBytes + header.bytes) return;
  connection.sent->left -= header.bytes;
  if (connection.sent->left == 0) connection.sent->complete();
  connection.sent.reset();
}

void Peer::read(Connection& connection) {
  if (connection.is_parked) has_left();  // A parked socket has no other event than its end.
  FrameHeader& header = connection.header;
  for (int i = 0; i < kReadsInTurn && connection.socket.is_open() && !connection.is_parked; ++i) {
    const bool is_header = connection.received == nullptr;
    const iovec rest = is_header ? rest_of(&header, kHeaderBytes, connection.header_read)
                                 : rest_of(connection.received->memory.mutable_data_ptr<uint8_t>() + header.begin,
                                           header.bytes, connection.frame_read);
    const ssize_t count = ::recv(connection.socket.get(), rest.iov_base, rest.iov_len, MSG_DONTWAIT);
    if (count == 0) {
      end_connection(connection);
    } else if (count < 0) {
      lose_unless_interrupted("reading from");
      return;
    } else if (is_header) {
      connection.header_read += count;
      if (connection.header_read == kHeaderBytes) begin_frame(connection);
    } else {
      connection.frame_read += count;
      if (connection.frame_read == header.bytes) end_frame(connection);
    }
  }
}

void Peer::begin_frame(Connection& connection) {
  const FrameHeader& header = connection.header;
  if (!header.is_valid()) {
    fail("it sent bytes that are not a message");
    return;
  }
  MessagePtr message;
  try {
    message = message_of(header);
  } catch (const std::exception& error) {  // Too little memory.
    fail(c10::str("no memory for a message of ", header.total, " bytes: ", error_message(error)));
    return;
  }
  if (message == nullptr) {
    has_left_ ? lose(text_of_end()) : park(connection);
    return;
  }
  if (header.total != message->memory.numel() || header.bytes > message->unclaimed) {
    fail(text_of_sizes(header.total, message->memory.numel()));
    return;
  }
  if (std::exchange(connection.is_parked, false)) poller_.update(connection);
  message->unclaimed -= header.bytes;
  connection.header_read = 0;
  connection.frame_read = 0;
  connection.received = message;
}

// Null if the message has no receive yet, and no memory is left for it. If the peer has left, only the end of a message
// that is on the way can still come: a larger one will never be complete.
// Two messages with one tag keep their order, because ranks use a tag again long after they have got its last message.
MessagePtr Peer::message_of(const FrameHeader& header) {
  if (const auto found = arriving_.find(header.number); found != arriving_.end()) return found->second;
  MessagePtr message = take(posted_, header.tag);
  if (message == nullptr) {
    const int64_t most = most_early_ + (has_left_ ? kMostBytesOnTheWay * std::ssize(connections_) : 0);
    if (header.total > most - early_bytes_) return nullptr;
    message = c10::make_intrusive<Message>(waiting_, "recv", at::empty({header.total}, at::kByte));
    message->is_early = true;
    early_[header.tag].push_back(message);
    early_bytes_ += header.total;
  }
  arriving_[header.number] = message;
  return message;
}

void Peer::end_frame(Connection& connection) {
  const MessagePtr message = std::exchange(connection.received, {});
  message->left -= connection.header.bytes;
  if (message->left > 0) return;
  arriving_.erase(connection.header.number);
  if (message->receive != nullptr) {
    message->hand_over();
  } else if (!message->is_early) {
    message->complete();
  }
}

void Peer::close(Connection& connection) const {
  if (!connection.socket.is_open()) return;
  poller_.forget(connection);
  connection.socket.close();
}

// A peer that leaves closes its sockets one after the other. The others may still carry what it has sent.
//
// Or the network has ended one socket of a peer that lives. What was on the way there is lost, and no later message can
// be relied on. Then the peer is to notice the same at once: it finds that all sockets have ended, and closes them.
void Peer::end_connection(Connection& connection) {
  close(connection);
  const bool is_last = std::ranges::none_of(connections_, [](const auto& other) { return other.socket.is_open(); });
  if (is_last || connection.reads_frame()) {
    lose(text_of_end());
  } else {
    end_sending();
    has_left();
  }
}

void Peer::end_sending() {
  if (!why_no_sends_.empty()) return;
  why_no_sends_ = text_of_end();
  fail_sends(why_no_sends_);
  for (Connection& connection : connections_) {
    if (!connection.socket.is_open()) continue;
    ::shutdown(connection.socket.get(), SHUT_WR);
    if (std::exchange(connection.wants_room, false)) poller_.update(connection);
  }
}

void Peer::fail_sends(const std::string& why) {
  for (Connection& connection : connections_) {
    if (connection.sent != nullptr) std::exchange(connection.sent, {})->fail(why);
  }
  for (const Outgoing& outgoing : std::exchange(outgoing_, {})) outgoing.message->fail(why);
}

std::string Peer::text_of_end() const { return "Connection closed by peer " + address_; }

// After a system call that has failed.
void Peer::lose_unless_interrupted(const char* action) {
  if (errno == EAGAIN || errno == EINTR) return;
  const bool has_peer_ended = errno == ECONNRESET || errno == EPIPE;
  const std::string why = c10::str(action, " ", address_, ": ", std::generic_category().message(errno));
  has_peer_ended ? lose(why) : fail(why);
}

void Peer::fail(const std::string& why) {
  has_failed_ = has_failed_ || failure_.empty();
  lose(why);
}

void Peer::lose(const std::string& why) {
  if (!failure_.empty()) return;
  failure_ = why;
  for (Connection& connection : connections_) {
    close(connection);
    connection.received.reset();
    connection.is_parked = false;
  }
  fail_sends(why);
  for (const auto& [tag, receives] : std::exchange(posted_, {})) {
    for (const MessagePtr& receive : receives) receive->fail(why);
  }
  for (const auto& [number, message] : std::exchange(arriving_, {})) message->fail(why);
  for (auto& [tag, messages] : early_) {
    std::erase_if(messages, [](const MessagePtr& message) { return message->left > 0; });
  }
  std::erase_if(early_, [](const auto& of_tag) { return of_tag.second.empty(); });
}

}  // namespace narrowcast::connections
