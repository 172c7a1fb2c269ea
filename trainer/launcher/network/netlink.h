// Messages of rtnetlink(7), by which the kernel is asked to change interfaces, addresses and queueing disciplines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/file_descriptor.h"

namespace narrowcast::launcher {

// One request, built from front to back: the header of its kind, then attributes, which may contain attributes.
class NetlinkMessage {
 public:
  // `type` is for instance RTM_NEWLINK; `flags` are added to NLM_F_REQUEST | NLM_F_ACK.
  NetlinkMessage(uint16_t type, uint16_t flags);

  // Appends the header that follows from the type, for instance an ifinfomsg.
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

  // Appends an attribute with a text and the zero byte that ends it.
  NetlinkMessage& add_text(uint16_t type, const std::string& text);

  // All that is appended until the matching end() is inside this attribute.
  NetlinkMessage& begin(uint16_t type);
  NetlinkMessage& end();

  // Fills in the length and returns the bytes. The message must have no attribute that was begun and not ended.
  const std::vector<uint8_t>& bytes();

 private:
  void append(const void* bytes, size_t count);
  void add_bytes(uint16_t type, const void* bytes, size_t count);

  std::vector<uint8_t> bytes_;
  std::vector<size_t> open_;  // where the attributes begin that have not ended
};

// A conversation with the kernel about the network namespace in which this object was made, whichever namespace the
// process enters later.
class NetlinkSocket {
 public:
  // Throws c10::ValueError with the system's reason if there is no such socket.
  NetlinkSocket();

  // Sends the request and waits for the answer. Returns nothing, or why the kernel refused, in its own words.
  std::string try_request(NetlinkMessage message);

  // Throws c10::ValueError "WHAT: REASON" if the kernel refuses.
  void request(std::string_view what, NetlinkMessage message);

  // The number of the interface with that name. Throws c10::ValueError if there is none.
  int32_t index_of(const std::string& interface);

 private:
  FileDescriptor socket_;
};

}  // namespace narrowcast::launcher
