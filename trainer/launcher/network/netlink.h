// Messages of rtnetlink(7), which change the kernel's interfaces, addresses and queueing disciplines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/file_descriptor.h"

namespace narrowcast::launcher {

// One request, built from front to back: a header that depends on its type, then attributes, which may be nested.
class NetlinkMessage {
 public:
  // `type` is for instance RTM_NEWLINK; `flags` are added to NLM_F_REQUEST | NLM_F_ACK.
  NetlinkMessage(uint16_t type, uint16_t flags);

  // Appends the header that the type requires, for instance an ifinfomsg.
  template <class Header>
  NetlinkMessage& header(const Header& header) {
    append(&header, sizeof(header));
    return *this;
  }

  // Appends an attribute with the bytes of `value`.
  template <class Value>
  NetlinkMessage& add(uint16_t type, const Value& value) {
    add_bytes(type, &value, sizeof(value));
    return *this;
  }

  // Appends an attribute with a zero-terminated text.
  NetlinkMessage& add_text(uint16_t type, const std::string& text);

  // Begins and ends an attribute that contains everything appended in between.
  NetlinkMessage& begin(uint16_t type);
  NetlinkMessage& end();

  // Fills in the length and returns the bytes. All attributes must have been ended.
  const std::vector<uint8_t>& bytes();

 private:
  void append(const void* bytes, size_t count);
  void add_bytes(uint16_t type, const void* bytes, size_t count);

  std::vector<uint8_t> bytes_;
  std::vector<size_t> open_;  // offsets of the attributes that have not ended
};

// A connection to the kernel for the network namespace in which this object was made, even if the process enters
// another namespace later.
class NetlinkSocket {
 public:
  // Throws c10::ValueError with the system's reason if the socket cannot be opened.
  NetlinkSocket();

  // Sends the request and waits for the answer. Returns an empty text, or the kernel's reason for a refusal.
  std::string try_request(NetlinkMessage message);

  // Throws c10::ValueError "WHAT: REASON" if the kernel refuses.
  void request(std::string_view what, NetlinkMessage message);

  // Returns the number of the interface with that name. Throws c10::ValueError if it does not exist.
  int32_t index_of(const std::string& interface);

 private:
  FileDescriptor socket_;
};

}  // namespace narrowcast::launcher
