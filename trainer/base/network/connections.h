// TCP connections of this process to which a library gives no access.
#pragma once

#include <cstdint>
#include <map>

namespace narrowcast::network {

// Gloo's connections cannot be ended from outside, and wait for a machine that is gone until a time-out. So they are
// found among this process's files: those that were not there before Gloo connected.
class Connections {
 public:
  // The connections that are open now.
  static Connections of_this_process();

  // Those of these that are not among `others`.
  Connections without(const Connections& others) const;

  // Ends the connections that still exist, as a peer's end would: whoever waits for one gets an error. Their owner
  // closes them. Throws nothing. Thread-safe.
  void shut_down() const;

 private:
  std::map<int, uint64_t> inodes_;  // by file descriptor, which may be another file by now
};

}  // namespace narrowcast::network
