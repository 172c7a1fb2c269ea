#include "trainer/launcher/network/netlink.h"

#include <c10/util/Exception.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "trainer/base/files/open_file.h"

namespace narrowcast::launcher {
namespace {

// Returns the kernel's explanation in an answer; empty if it has none. The attributes follow the error's header, and
// the request is in between unless the answer is capped.
std::string explanation(const uint8_t* answer, const nlmsghdr& header) {
  if ((header.nlmsg_flags & NLM_F_ACK_TLVS) == 0) {
    return "";
  }
  nlmsgerr error{};
  std::memcpy(&error, answer + NLMSG_HDRLEN, sizeof(error));
  size_t place = NLMSG_HDRLEN + sizeof(error);
  if ((header.nlmsg_flags & NLM_F_CAPPED) == 0) {
    place += NLMSG_ALIGN(error.msg.nlmsg_len) - sizeof(nlmsghdr);
  }
  while (place + sizeof(nlattr) <= header.nlmsg_len) {
    nlattr attribute{};
    std::memcpy(&attribute, answer + place, sizeof(attribute));
    if (attribute.nla_len < NLA_HDRLEN || place + attribute.nla_len > header.nlmsg_len) {
      break;
    }
    if (attribute.nla_type == NLMSGERR_ATTR_MSG) {
      const auto* const text = reinterpret_cast<const char*>(answer + place + NLA_HDRLEN);
      return {text, strnlen(text, attribute.nla_len - NLA_HDRLEN)};
    }
    place += NLA_ALIGN(attribute.nla_len);
  }
  return "";
}

// Returns an empty text, or why the request was refused.
std::string reason_in(const uint8_t* answer, size_t size) {
  nlmsghdr header{};
  nlmsgerr error{};
  if (size < NLMSG_HDRLEN + sizeof(error)) {
    return "the kernel's answer is too short";
  }
  std::memcpy(&header, answer, sizeof(header));
  std::memcpy(&error, answer + NLMSG_HDRLEN, sizeof(error));
  if (header.nlmsg_type != NLMSG_ERROR || header.nlmsg_len > size) {
    return "the kernel's answer is of another kind";
  }
  if (error.error == 0) {
    return "";
  }
  const std::string more = explanation(answer, header);
  return files::reason(-error.error) + (more.empty() ? "" : " (" + more + ")");
}

}  // namespace

NetlinkMessage::NetlinkMessage(uint16_t type, uint16_t flags) {
  nlmsghdr header{};
  header.nlmsg_type = type;
  header.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags);
  append(&header, sizeof(header));
}

void NetlinkMessage::append(const void* bytes, size_t count) {
  const auto* const begin = static_cast<const uint8_t*>(bytes);
  bytes_.insert(bytes_.end(), begin, begin + count);
  bytes_.resize(NLMSG_ALIGN(bytes_.size()));
}

void NetlinkMessage::add_bytes(uint16_t type, const void* bytes, size_t count) {
  const nlattr attribute{.nla_len = static_cast<uint16_t>(NLA_HDRLEN + count), .nla_type = type};
  append(&attribute, sizeof(attribute));
  append(bytes, count);
}

NetlinkMessage& NetlinkMessage::add_text(uint16_t type, const std::string& text) {
  add_bytes(type, text.c_str(), text.size() + 1);
  return *this;
}

NetlinkMessage& NetlinkMessage::begin(uint16_t type) {
  open_.push_back(bytes_.size());
  add_bytes(type, nullptr, 0);
  return *this;
}

NetlinkMessage& NetlinkMessage::end() {
  TORCH_INTERNAL_ASSERT(!open_.empty());
  const auto length = static_cast<uint16_t>(bytes_.size() - open_.back());
  std::memcpy(bytes_.data() + open_.back() + offsetof(nlattr, nla_len), &length, sizeof(length));
  open_.pop_back();
  return *this;
}

const std::vector<uint8_t>& NetlinkMessage::bytes() {
  TORCH_INTERNAL_ASSERT(open_.empty());
  const auto length = static_cast<uint32_t>(bytes_.size());
  std::memcpy(bytes_.data() + offsetof(nlmsghdr, nlmsg_len), &length, sizeof(length));
  return bytes_;
}

NetlinkSocket::NetlinkSocket() : socket_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) {
  TORCH_CHECK_VALUE(socket_.is_open(), "a netlink socket: ", files::reason(errno));
  const int on = 1;  // Kernels without these options send shorter answers.
  setsockopt(socket_.get(), SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof(on));
  setsockopt(socket_.get(), SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on));
}

std::string NetlinkSocket::try_request(NetlinkMessage message) {
  const std::vector<uint8_t>& bytes = message.bytes();
  if (send(socket_.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return files::reason(errno);
  }
  std::array<uint8_t, 8192> answer{};
  ssize_t received = -1;
  do {
    received = recv(socket_.get(), answer.data(), answer.size(), 0);
  } while (received < 0 && errno == EINTR);
  return received < 0 ? files::reason(errno) : reason_in(answer.data(), static_cast<size_t>(received));
}

void NetlinkSocket::request(std::string_view what, NetlinkMessage message) {
  const std::string reason = try_request(std::move(message));
  TORCH_CHECK_VALUE(reason.empty(), what, ": ", reason);
}

int32_t NetlinkSocket::index_of(const std::string& interface) {
  ifreq named{};
  std::strncpy(named.ifr_name, interface.c_str(), sizeof(named.ifr_name) - 1);
  // A netlink socket answers for its own namespace. if_nametoindex would answer for the process's namespace.
  TORCH_CHECK_VALUE(ioctl(socket_.get(), SIOCGIFINDEX, &named) == 0, "interface ", interface, ": ",
                    files::reason(errno));
  return named.ifr_ifindex;
}

}  // namespace narrowcast::launcher
