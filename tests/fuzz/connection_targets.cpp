// Bytes that a peer, or a stranger, sends over the sockets of --connections, and messages of outer rounds.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/comm/connections/meeting/reception.h"
#include "ops/comm/connections/messages/peer.h"
#include "tests/fuzz/target.h"
#include "trainer/ddp/quorum/round_message.h"

namespace narrowcast::fuzz {
namespace {

using connections::FrameHeader;
using connections::Hello;
using connections::Peer;
using connections::Token;

constexpr size_t kSockets = 2;
constexpr int64_t kMessageBytes = 100;
constexpr int64_t kTags = 8;  // The receives of the lower half are posted before the peer sends.

std::pair<FileDescriptor, FileDescriptor> connected_pair() {
  std::array<int, 2> ends{};
  TORCH_INTERNAL_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

bool has_bytes(const FileDescriptor& socket) {
  int count = 0;
  return socket.is_open() && ::ioctl(socket.get(), FIONREAD, &count) == 0 && count > 0;
}

// A rank, and a peer that sends anything. An input consists of pieces: a socket's number (1 byte), a size (2 bytes),
// and that many bytes.
class AttackedPeer {
 public:
  AttackedPeer() {
    std::vector<FileDescriptor> sockets(kSockets);
    for (size_t i = 0; i < kSockets; ++i) std::tie(sockets[i], strangers_[i]) = connected_pair();
    waiting_->timeout = [] { return std::chrono::milliseconds(0); };
    waiting_->close = [this](const std::string& why) { peer_->lose(why); };
    peer_ = std::make_unique<Peer>(
        std::move(sockets), waiting_,
        Peer::Poller{.update = [](connections::Connection&) {}, .forget = [](connections::Connection&) {}},
        /*most_early=*/2 * kMessageBytes);
    post(0, kTags / 2);
  }

  void suffer(std::string_view input) {
    while (input.size() > 3) {
      uint16_t size = 0;
      std::memcpy(&size, input.data() + 1, sizeof(size));
      const std::string_view piece = input.substr(3, size);
      const FileDescriptor& socket = strangers_.at(static_cast<size_t>(input[0]) % kSockets);
      static_cast<void>(::send(socket.get(), piece.data(), piece.size(), MSG_NOSIGNAL));
      read_all();
      input.remove_prefix(3 + piece.size());
    }
  }

  // The peer ends, and all messages are waited for.
  void end() {
    post(kTags / 2, kTags);
    read_all();
    for (FileDescriptor& stranger : strangers_) stranger.close();
    {
      const std::lock_guard<std::mutex> lock(waiting_->mutex);
      for (connections::Connection& connection : peer_->connections()) {
        while (connection.socket.is_open()) read(connection);
      }
      TORCH_INTERNAL_ASSERT(peer_->is_lost());
    }
    for (const auto& receive : receives_) receive->wait(std::chrono::milliseconds(0));
  }

 private:
  void post(int64_t begin, int64_t end) {
    const std::lock_guard<std::mutex> lock(waiting_->mutex);
    for (int64_t tag = begin; tag < end; ++tag) {
      receives_.push_back(peer_->receive(tag, at::zeros({kMessageBytes}, at::kByte)));
    }
  }

  // As the sockets' thread does.
  void read(connections::Connection& connection) {
    try {
      peer_->read(connection);
    } catch (const std::exception& error) {  // Too little memory for a message.
      peer_->lose(error.what());
    }
  }

  void read_all() {
    const std::lock_guard<std::mutex> lock(waiting_->mutex);
    for (connections::Connection& connection : peer_->connections()) {
      while (!connection.is_parked && has_bytes(connection.socket)) read(connection);
    }
  }

  const std::shared_ptr<connections::Waiting> waiting_ = std::make_shared<connections::Waiting>();
  std::array<FileDescriptor, kSockets> strangers_;
  std::unique_ptr<Peer> peer_;
  std::vector<connections::MessagePtr> receives_;
};

void read_frames(std::string_view input) {
  AttackedPeer peer;
  try {
    peer.suffer(input);
    peer.end();
  } catch (const std::runtime_error& error) {  // The errors of works, which the engine turns into this one.
    TORCH_CHECK_WITH(DistBackendError, false, error.what());
  }
}

std::string piece(char socket, const std::string& bytes) {
  const auto size = static_cast<uint16_t>(bytes.size());
  return std::string(1, socket) + std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + bytes;
}

std::string frame(const FrameHeader& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
         std::string(static_cast<size_t>(header.bytes), 'x');
}

std::vector<std::string> frames() {
  std::string early;  // Messages with and without a receive.
  for (int64_t tag = 0; tag < kTags; ++tag) {
    const auto number = static_cast<uint64_t>(tag);
    early += piece(static_cast<char>(tag % 2),
                   frame({connections::kFrameMark, number, tag, kMessageBytes, 0, kMessageBytes}));
  }
  const std::string first = frame({connections::kFrameMark, 0, 0, kMessageBytes, 0, 60});
  const std::string second = frame({connections::kFrameMark, 0, 0, kMessageBytes, 60, 40});
  return {early, piece(1, second) + piece(0, first.substr(0, 20)) + piece(0, first.substr(20)),
          piece(0, first) + piece(0, first), piece(0, frame({connections::kFrameMark, 0, 9, 1000, 0, 1})),
          piece(0, frame({connections::kFrameMark, 0, 9, int64_t{1} << 40, 0, 1}))};
}

constexpr Token kToken = {0x6161616161616161, 0x6262626262626262};

// A stranger at the socket where peers connect, whose bytes come in two parts.
void read_hello(std::string_view input) {
  int taken = 0;
  connections::Reception reception(kToken, 1, [&](const Hello& hello, FileDescriptor&) {
    TORCH_INTERNAL_ASSERT(hello.token == kToken);
    ++taken;
  });
  auto [stranger, own] = connected_pair();
  const size_t half = input.size() / 2;
  static_cast<void>(::send(stranger.get(), input.data(), half, MSG_NOSIGNAL));
  reception.admit(std::move(own));
  static_cast<void>(::send(stranger.get(), input.data() + half, input.size() - half, MSG_NOSIGNAL));
  reception.hear(std::vector<bool>(reception.sockets().size(), true));
  const bool is_right = input.size() >= sizeof(Hello) && std::memcmp(input.data(), &kToken, sizeof(kToken)) == 0;
  TORCH_INTERNAL_ASSERT(taken == (is_right ? 1 : 0), "another first message was taken");
  TORCH_INTERNAL_ASSERT(reception.sockets().empty() || input.size() < sizeof(Hello), "a stranger is kept");
}

std::vector<std::string> hellos() {
  const Hello hello{kToken, 1, 2};
  const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof(hello));
  return {bytes, bytes + bytes, bytes.substr(0, 20), "GET / HTTP/1.1\r\nHost: rank\r\nAccept: everything\r\n\r\n"};
}

// A message of an outer round from group 1 of 3, which it says is its third.
void read_round_message(std::string_view input) {
  at::Tensor message = at::empty({static_cast<int64_t>(input.size())}, at::kByte);
  if (!input.empty()) std::memcpy(message.mutable_data_ptr(), input.data(), input.size());
  const RoundHeader header = header_of(message, 1, 2);
  TORCH_INTERNAL_ASSERT(header.group == 1 && header.number == 2 && header.weight >= 1 && header.rounds >= 0);
  const int64_t numel = encoded_in(message).numel() / 4;
  if (encoded_size(numel, WireFormat::kFp32) == encoded_in(message).numel()) {
    decode(encoded_in(message), WireFormat::kFp32, numel);
  }
}

std::vector<std::string> round_messages() {
  const RoundHeader header{.group = 1, .number = 2, .rounds = 5, .weight = 30};
  const at::Tensor message = round_message(header, encode(at::arange(10, at::kFloat), WireFormat::kFp32));
  const std::string bytes(static_cast<const char*>(message.const_data_ptr()), message.nbytes());
  return {bytes, bytes.substr(0, sizeof(RoundHeader)), bytes.substr(0, 40)};
}

// The groups of a round, as the store has them.
void read_round_groups(std::string_view input) {
  const std::vector<int64_t> groups = parse_groups(input, 12, 2);
  TORCH_INTERNAL_ASSERT(groups.size() >= 2 && std::ranges::is_sorted(groups) && groups.back() < 12);
  TORCH_INTERNAL_ASSERT(parse_groups(text_of_groups(groups), 12, 2) == groups);
}

std::vector<std::string> round_groups() { return {"0,1", "0,2,11", "1,10", "3"}; }

}  // namespace

std::vector<Target> connection_targets() {
  return {{"connection_frames", read_frames, frames},
          {"connection_hello", read_hello, hellos},
          {"round_message", read_round_message, round_messages},
          {"round_groups", read_round_groups, round_groups}};
}

}  // namespace narrowcast::fuzz
