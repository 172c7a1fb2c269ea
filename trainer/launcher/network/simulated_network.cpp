#include "trainer/launcher/network/simulated_network.h"

#include <absl/strings/str_cat.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <utility>

#include "ops/common/file_descriptor.h"
#include "trainer/launcher/network/netlink.h"

#include "trainer/base/files/open_file.h"

namespace narrowcast::launcher {
namespace {

constexpr double kLeastGbit = 0.001;
constexpr double kMostGbit = 100;
constexpr int64_t kMostUs = 1'000'000;
constexpr const char* kSwitch = "switch";
constexpr const char* kNamespaceOfThread = "/proc/thread-self/ns/net";
constexpr uint8_t kPrefixLength = 15;

// Burst of a token bucket, which passes at once after a pause: 0.25 ms at the rate, so that even a small message takes
// time. It is at least some packets, between which the kernel's timer has to fire.
constexpr double kBurstSeconds = 0.25e-3;
constexpr double kLeastBurst = 16 << 10;
constexpr double kMostBurst = 256 << 10;

// Queue of a token bucket, in bytes. Senders stop long before it is full. The ports of receivers hold the windows of
// several senders, so no packet is dropped.
constexpr uint32_t kQueueBytes = 64 << 20;

// Queue of a delay, in packets of up to 64 KiB.
constexpr uint32_t kDelayedPackets = 100'000;

// The kernel's unit of time in queueing disciplines is 64 ns (PSCHED_SHIFT).
uint32_t ticks(double seconds) {
  return static_cast<uint32_t>(std::min(seconds * 1e9 / 64, double{std::numeric_limits<uint32_t>::max()}));
}

uint64_t bytes_per_second(const NetworkShape& shape) { return static_cast<uint64_t>(shape.gbit * 1e9 / 8); }

uint32_t burst_bytes(const NetworkShape& shape) {
  return static_cast<uint32_t>(
      std::clamp(static_cast<double>(bytes_per_second(shape)) * kBurstSeconds, kLeastBurst, kMostBurst));
}

ifinfomsg link(int32_t index = 0) {
  ifinfomsg header{};
  header.ifi_family = AF_UNSPEC;
  header.ifi_index = index;
  return header;
}

NetlinkMessage new_link() { return {RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL}; }

// Requests a step for which the kernel needs more than a namespace.
void ask(NetlinkSocket& socket, const char* step, NetlinkMessage message) {
  socket.request(absl::StrCat("--simulate_gbit: ", step), std::move(message));
}

int32_t add_switch(NetlinkSocket& hub) {
  NetlinkMessage message = new_link();
  message.header(link()).add_text(IFLA_IFNAME, kSwitch).begin(IFLA_LINKINFO);
  message.add_text(IFLA_INFO_KIND, "bridge").end();
  ask(hub, "adding a bridge", std::move(message));
  return hub.index_of(kSwitch);
}

void set_up(NetlinkSocket& socket, int32_t index) {
  ifinfomsg header = link(index);
  header.ifi_flags = IFF_UP;
  header.ifi_change = IFF_UP;
  NetlinkMessage message(RTM_NEWLINK, 0);
  message.header(header);
  ask(socket, "setting an interface up", std::move(message));
}

// Adds the `number`th address after kStoreAddress.
void add_address(NetlinkSocket& socket, int32_t index, int64_t number) {
  const in_addr_t address = htonl(ntohl(inet_addr(SimulatedNetwork::kStoreAddress)) + static_cast<uint32_t>(number));
  ifaddrmsg header{};
  header.ifa_family = AF_INET;
  header.ifa_prefixlen = kPrefixLength;
  header.ifa_index = static_cast<uint32_t>(index);
  NetlinkMessage message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
  message.header(header).add(IFA_LOCAL, address).add(IFA_ADDRESS, address);
  ask(socket, "adding an address", std::move(message));
}

// Adds a pair of interfaces: `port` at the switch, and eth0 in a rank's namespace.
void add_wire(NetlinkSocket& hub, const std::string& port, int32_t switch_index, int rank_namespace) {
  NetlinkMessage message = new_link();
  message.header(link()).add_text(IFLA_IFNAME, port).add(IFLA_MASTER, switch_index).begin(IFLA_LINKINFO);
  message.add_text(IFLA_INFO_KIND, "veth").begin(IFLA_INFO_DATA).begin(VETH_INFO_PEER);
  message.header(link()).add_text(IFLA_IFNAME, SimulatedNetwork::kInterface).add(IFLA_NET_NS_FD, rank_namespace);
  message.end().end().end();
  ask(hub, "adding a veth pair", std::move(message));
}

// Prevents IPv6 addresses, so that programs which use an interface's first address find the IPv4 one. A kernel without
// IPv6 refuses the request, which is harmless.
void leave_without_ipv6(NetlinkSocket& socket, int32_t index) {
  const uint8_t none = IN6_ADDR_GEN_MODE_NONE;
  NetlinkMessage message(RTM_NEWLINK, 0);
  message.header(link(index)).begin(IFLA_AF_SPEC).begin(AF_INET6);
  message.add(IFLA_INET6_ADDR_GEN_MODE, none).end().end();
  socket.try_request(std::move(message));
}

// Limits segments to the burst. TCP may pass down larger packets, which the token bucket would have to split, at a
// cost.
void limit_segments(NetlinkSocket& socket, int32_t index, const NetworkShape& shape) {
  constexpr uint32_t kMostOfVeth = 65'536;
  const uint32_t with_headers = burst_bytes(shape) / 16 * 15;
  NetlinkMessage message(RTM_NEWLINK, 0);
  message.header(link(index)).add(IFLA_GSO_MAX_SIZE, std::min(with_headers, kMostOfVeth));
  ask(socket, "limiting an interface's segments", std::move(message));
}

tcmsg discipline(int32_t index, uint32_t parent, uint32_t handle) {
  tcmsg header{};
  header.tcm_family = AF_UNSPEC;
  header.tcm_ifindex = index;
  header.tcm_parent = parent;
  header.tcm_handle = handle;
  return header;
}

constexpr uint32_t kBucketHandle = TC_H_MAKE(1U << 16, 0U);
constexpr uint32_t kInsideBucket = TC_H_MAKE(1U << 16, 1U);
constexpr uint32_t kDelayHandle = TC_H_MAKE(2U << 16, 0U);

void limit_rate(NetlinkSocket& socket, int32_t index, const NetworkShape& shape) {
  const uint64_t rate = bytes_per_second(shape);
  const uint32_t burst = burst_bytes(shape);
  tc_tbf_qopt options{};
  options.rate.linklayer = TC_LINKLAYER_ETHERNET;
  options.rate.rate = static_cast<uint32_t>(std::min(rate, uint64_t{std::numeric_limits<uint32_t>::max()}));
  options.limit = kQueueBytes;
  options.buffer = ticks(burst / static_cast<double>(rate));
  NetlinkMessage message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL);
  message.header(discipline(index, TC_H_ROOT, kBucketHandle)).add_text(TCA_KIND, "tbf").begin(TCA_OPTIONS);
  message.add(TCA_TBF_PARMS, options).add(TCA_TBF_BURST, burst);
  if (rate > options.rate.rate) {
    message.add(TCA_TBF_RATE64, rate);
  }
  message.end();
  ask(socket, "adding a token bucket (sch_tbf)", std::move(message));
}

void delay(NetlinkSocket& socket, int32_t index, const NetworkShape& shape) {
  if (shape.us == 0) {
    return;
  }
  tc_netem_qopt options{};
  options.latency = ticks(shape.us * 1e-6);
  options.limit = kDelayedPackets;
  NetlinkMessage message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL);
  message.header(discipline(index, kInsideBucket, kDelayHandle)).add_text(TCA_KIND, "netem").begin(TCA_OPTIONS);
  message.header(options).add(TCA_NETEM_LATENCY64, static_cast<int64_t>(std::llround(shape.us * 1e3))).end();
  socket.request(absl::StrCat("--simulate_us=", shape.us, ": adding a delay (sch_netem)"), std::move(message));
}

FileDescriptor namespace_of_thread() {
  FileDescriptor found(open(kNamespaceOfThread, O_RDONLY | O_CLOEXEC));
  TORCH_CHECK_VALUE(found.is_open(), kNamespaceOfThread, ": ", files::reason(errno));
  return found;
}

// Keeps the calling thread in a new network namespace during its lifetime.
class NewNamespace {
 public:
  NewNamespace() : before_(namespace_of_thread()) {
    TORCH_CHECK_VALUE(unshare(CLONE_NEWNET) == 0, "--simulate_gbit: a network namespace: ", files::reason(errno));
  }
  NewNamespace(const NewNamespace&) = delete;
  NewNamespace& operator=(const NewNamespace&) = delete;
  ~NewNamespace() { leave(); }

  // Returns the namespace's descriptor and leaves the namespace. Throws c10::ValueError if the thread cannot return.
  FileDescriptor take() {
    FileDescriptor made = namespace_of_thread();
    TORCH_CHECK_VALUE(leave(), "--simulate_gbit: returning to a network namespace: ", files::reason(errno));
    return made;
  }

 private:
  bool leave() {
    const FileDescriptor before = std::move(before_);
    return !before.is_open() || setns(before.get(), CLONE_NEWNET) == 0;
  }

  FileDescriptor before_;
};

FileDescriptor add_rank(NetlinkSocket& hub, int32_t switch_index, int64_t rank, const NetworkShape& shape) {
  NewNamespace inside;
  NetlinkSocket own;
  FileDescriptor made = inside.take();
  const std::string port = absl::StrCat("port", rank);
  add_wire(hub, port, switch_index, made.get());
  const int32_t port_index = hub.index_of(port);
  const int32_t card = own.index_of(SimulatedNetwork::kInterface);
  leave_without_ipv6(own, card);
  limit_segments(own, card, shape);
  limit_rate(own, card, shape);
  limit_rate(hub, port_index, shape);
  delay(hub, port_index, shape);
  add_address(own, card, 1 + rank);
  set_up(own, own.index_of("lo"));
  set_up(own, card);
  set_up(hub, port_index);
  return made;
}

}  // namespace

void check_shape(const NetworkShape& shape) {
  TORCH_CHECK_VALUE(shape.gbit >= kLeastGbit && shape.gbit <= kMostGbit, "--simulate_gbit=", shape.gbit,
                    ": must be from ", kLeastGbit, " to ", kMostGbit, " Gbit/s");
  TORCH_CHECK_VALUE(shape.us >= 0 && shape.us <= static_cast<double>(kMostUs), "--simulate_us=", shape.us,
                    ": must be from 0 to ", kMostUs, " microseconds");
}

std::string shape_text(const NetworkShape& shape) {
  const std::string rate = absl::StrCat(shape.gbit, " Gbit/s");
  return shape.us == 0 ? rate : absl::StrCat(rate, ", ", shape.us, " us");
}

SimulatedNetwork::SimulatedNetwork(const NetworkShape& shape, int64_t ranks) {
  check_shape(shape);
  TORCH_CHECK_VALUE(ranks >= 1 && ranks <= kMostRanks, "--nproc_per_node=", ranks,
                    ": a simulated network has from 1 to ", kMostRanks, " ranks");
  NetlinkSocket hub;
  const int32_t switch_index = add_switch(hub);
  add_address(hub, switch_index, 0);
  set_up(hub, switch_index);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    namespaces_.push_back(add_rank(hub, switch_index, rank, shape));
  }
}

std::vector<int> SimulatedNetwork::namespaces() const {
  std::vector<int> descriptors;
  for (const FileDescriptor& made : namespaces_) {
    descriptors.push_back(made.get());
  }
  return descriptors;
}

}  // namespace narrowcast::launcher
