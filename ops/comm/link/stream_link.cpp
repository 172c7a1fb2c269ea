#include "ops/comm/link/stream_link.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <vector>

#include "ops/comm/groups/group.h"
#include "ops/comm/link/link_probe.h"
#include "ops/common/backend_errors.h"
#include "ops/common/device_laps.h"
#include "ops/common/libtorch_versions.h"
#include "ops/common/median.h"

namespace narrowcast::collectives {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kSmallBytes = 16;
constexpr int64_t kFirstPings = 2;  // NCCL connects two ranks with their first message, which is slow.

class StreamProbe final : public LinkProbe {
 public:
  StreamProbe(Group group, at::Device device, const std::optional<LinkPeers>& peers)
      : group_(std::move(group)), device_(device), peers_(peers), ping_(message_of(kSmallBytes)) {}

  // Enqueues all pings before it waits for the first.
  double seconds_per_hop(int64_t pings) override {
    for (int64_t ping = 0; ping < kFirstPings; ++ping) {
      ping_and_echo();
    }
    laps_.mark();
    for (int64_t ping = 0; ping < pings; ++ping) {
      ping_and_echo();
      laps_.mark();
    }
    return most_of_any_rank(median(laps_.take()) / 2);
  }

  // Follows a round trip, so that both peers begin together.
  double seconds_of_message(int64_t bytes) override {
    Message message = message_of(bytes);
    ping_and_echo();
    laps_.mark();
    send(message, peers_);
    laps_.mark();
    return most_of_any_rank(laps_.take()[0]);
  }

  int64_t payload_bytes_sent() const override { return payload_bytes_sent_; }

 private:
  struct Message {
    at::Tensor sent;
    at::Tensor received;
  };

  // Empty tensors without peers.
  Message message_of(int64_t bytes) const {
    const auto make = [&] { return at::zeros({peers_ ? bytes : 0}, at::device(device_).dtype(at::kByte)); };
    return {make(), make()};
  }

  void ping_and_echo() {
    send(ping_, peers_);
    send(ping_, peers_ ? std::optional(LinkPeers{.to = peers_->from, .from = peers_->to}) : std::nullopt);
  }

  void send(Message& message, const std::optional<LinkPeers>& peers) {
    const int64_t bytes = message.sent.numel();
    std::vector<int64_t> sends(group_->getSize(), 0);
    std::vector<int64_t> receives(group_->getSize(), 0);
    if (peers) {
      sends[peers->to] = bytes;
      receives[peers->from] = bytes;
    }
    with_backend_errors(group_->getRank(), kMeasuringLink, [&] {
      libtorch::all_to_all_on_stream(group_, message.received, message.sent, receives, sends);
    });
    payload_bytes_sent_ += bytes;
  }

  // A rank without peers has no messages, so its time is ignored.
  double most_of_any_rank(double seconds) const {
    return greatest_of_ranks(group_, kMeasuringLink, {peers_ ? seconds : 0})[0];
  }

  const Group group_;
  const at::Device device_;
  const std::optional<LinkPeers> peers_;
  Message ping_;
  DeviceLaps laps_{device_};
  int64_t payload_bytes_sent_ = 0;
};

}  // namespace

LinkRates measure_link_on_stream(const Group& group, at::Device device, const std::optional<LinkPeers>& peers,
                                 const LinkEffort& effort) {
  const c10::DeviceGuard on_device(device);
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
  StreamProbe probe(group, device, peers);
  return measure_by(probe, effort);
}

}  // namespace narrowcast::collectives
