#include "tests/support/listening_sockets.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace narrowcast::testing {
namespace {

namespace fs = std::filesystem;

// Inode numbers of the sockets that a process has open; `folder` is the folder of the process below /proc.
std::set<std::string> sockets_of(const fs::path& folder) {
  std::set<std::string> inodes;
  for (const auto& entry : fs::directory_iterator(folder / "fd")) {
    std::error_code ended;
    const std::string target = fs::read_symlink(entry.path(), ended).string();
    if (target.starts_with("socket:[")) {
      inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  return inodes;
}

// The kernel prints addresses as 32-bit words in the machine's byte order.
std::string as_number(const std::string& hex) {
  uint32_t words[4] = {};
  for (size_t word = 0; word < hex.size() / 8; ++word) {
    words[word] = static_cast<uint32_t>(std::stoul(hex.substr(word * 8, 8), nullptr, 16));
  }
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(hex.size() == 8 ? AF_INET : AF_INET6, words, text, sizeof(text));
  return text;
}

// "ADDRESS:PORT", in the kernel's hexadecimal, of the process's sockets that wait for connections.
std::vector<std::string> listening_at(const fs::path& folder) {
  const std::set<std::string> own = sockets_of(folder);
  std::vector<std::string> places;
  for (const char* const table : {"net/tcp", "net/tcp6"}) {
    std::ifstream file(folder / table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      if (state == "0A" && own.count(inode) != 0) {
        places.push_back(local);
      }
    }
  }
  return places;
}

}  // namespace

std::vector<std::string> listening_addresses() {
  std::vector<std::string> addresses;
  for (const std::string& place : listening_at("/proc/self")) {
    addresses.push_back(as_number(place.substr(0, place.find(':'))));
  }
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

std::vector<int64_t> listening_ports_of(pid_t process) {
  std::vector<int64_t> ports;
  for (const std::string& place : listening_at(fs::path("/proc") / std::to_string(process))) {
    ports.push_back(std::stoll(place.substr(place.find(':') + 1), nullptr, 16));
  }
  return ports;
}

}  // namespace narrowcast::testing
