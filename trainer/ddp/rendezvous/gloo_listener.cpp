#include "trainer/ddp/rendezvous/gloo_listener.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "ops/common/file_descriptor.h"

namespace narrowcast::rendezvous {
namespace {

constexpr int kPatienceWithOwnSocket = 100;  // ms

// Reads values from the beginning of bytes.
class EntryReader {
 public:
  explicit EntryReader(const std::vector<uint8_t>& bytes) : bytes_(bytes) {}

  size_t left() const { return bytes_.size() - at_; }
  bool skip(size_t count) {
    const bool are_there = count <= left();
    at_ += are_there ? count : 0;
    return are_there;
  }
  template <class Value>
  std::optional<Value> take() {
    Value value{};
    const size_t begin = at_;
    if (!skip(sizeof(Value))) {
      return std::nullopt;
    }
    std::memcpy(&value, bytes_.data() + begin, sizeof(Value));
    return value;
  }

 private:
  const std::vector<uint8_t>& bytes_;
  size_t at_ = 0;
};

socklen_t length_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET ? sizeof(sockaddr_in) : address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

// Connects as the rank with that number.
void connect_to_self(const network::SocketAddress& place, int64_t number) {
  const FileDescriptor own(socket(place.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!own.is_open() || (connect(own.get(), place.get(), place.length) != 0 && errno != EINPROGRESS)) {
    return;
  }
  pollfd entry = {own.get(), POLLOUT, 0};
  if (poll(&entry, 1, kPatienceWithOwnSocket) == 1) {
    send(own.get(), &number, sizeof(number), MSG_NOSIGNAL);  // If it fails, nobody waits.
  }
}

}  // namespace

// The entry: the length of the host's name, that name, the size of the address, the address with a number of its own,
// and the numbers of the connections.
GlooAddress GlooAddress::parse(const std::vector<uint8_t>& bytes) {
  EntryReader reader(bytes);
  const std::optional<size_t> name = reader.take<size_t>();
  if (!name || !reader.skip(*name) || reader.take<size_t>() != sizeof(sockaddr_storage) + sizeof(int64_t)) {
    return {};
  }
  const std::optional<sockaddr_storage> address = reader.take<sockaddr_storage>();
  if (!address || !reader.skip(sizeof(int64_t)) || reader.left() % sizeof(int64_t) != 0) {
    return {};
  }
  GlooAddress parsed;
  parsed.place.bytes = *address;
  parsed.place.length = length_of(*address);
  while (const std::optional<int64_t> number = reader.take<int64_t>()) {
    parsed.numbers.push_back(*number);
  }
  return parsed;
}

// Shared with the keys, which Gloo may use longer.
struct GlooListener::Published {
  // Keys of Gloo, of which this rank writes its own address alone.
  class Keys : public c10d::PrefixStore {
   public:
    Keys(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Published> published)
        : PrefixStore("gloo", std::move(store)), published_(std::move(published)) {}

    using PrefixStore::set;
    void set(const std::string& key, const std::vector<uint8_t>& value) override {
      PrefixStore::set(key, value);
      if (GlooAddress address = GlooAddress::parse(value); !address.is_empty()) {
        const std::lock_guard lock(published_->mutex);
        published_->address = std::move(address);
      }
    }

   private:
    const std::shared_ptr<Published> published_;
  };

  mutable std::mutex mutex;
  GlooAddress address;
};

GlooListener::GlooListener(c10::intrusive_ptr<c10d::Store> keys)
    : published_(std::make_shared<Published>()),
      keys_(c10::make_intrusive<Published::Keys>(std::move(keys), published_)) {}

void GlooListener::end_waits(int64_t world_size) const {
  GlooAddress address;
  {
    const std::lock_guard lock(published_->mutex);
    address = published_->address;
  }
  if (address.is_empty()) {
    return;
  }
  for (int64_t rank = 0; address.numbers.empty() && rank < world_size; ++rank) {
    connect_to_self(address.place, rank);
  }
  for (const int64_t number : address.numbers) {
    connect_to_self(address.place, number);
  }
}

}  // namespace narrowcast::rendezvous
