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

// Numbers of the sockets that this process has open.
std::set<std::string> own_sockets() {
  std::set<std::string> inodes;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ended;
    const std::string target = fs::read_symlink(entry.path(), ended).string();
    if (target.starts_with("socket:[")) {
      inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  return inodes;
}

// The kernel writes addresses as 32-bit words in the machine's order.
std::string as_number(const std::string& hex) {
  uint32_t words[4] = {};
  for (size_t word = 0; word < hex.size() / 8; ++word) {
    words[word] = static_cast<uint32_t>(std::stoul(hex.substr(word * 8, 8), nullptr, 16));
  }
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(hex.size() == 8 ? AF_INET : AF_INET6, words, text, sizeof(text));
  return text;
}

void add_listening(const std::string& table, std::vector<std::string>& addresses) {
  const std::set<std::string> own = own_sockets();
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // the heading
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    if (state == "0A" && own.count(inode) != 0) {
      addresses.push_back(as_number(local.substr(0, local.find(':'))));
    }
  }
}

}  // namespace

std::vector<std::string> listening_addresses() {
  std::vector<std::string> addresses;
  add_listening("/proc/self/net/tcp", addresses);
  add_listening("/proc/self/net/tcp6", addresses);
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

}  // namespace narrowcast::testing
