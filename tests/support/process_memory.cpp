#include "tests/support/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "ops/common/file_descriptor.h"

namespace narrowcast::testing {
namespace {

struct Region {
  off_t begin;
  off_t end;
};

// Without address space that is only reserved, which can be many gigabytes.
std::vector<Region> writable_regions(pid_t pid) {
  constexpr off_t kMost = off_t{1} << 30;
  std::vector<Region> regions;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    Region region{};
    char dash = 0;
    std::string access;
    words >> std::hex >> region.begin >> dash >> region.end >> access;
    if (access.starts_with("rw") && region.end - region.begin <= kMost) regions.push_back(region);
  }
  return regions;
}

// The readable part of the region: memory of a device cannot be read.
std::string read_region(int memory, const Region& region) {
  std::string content(static_cast<size_t>(region.end - region.begin), '\0');
  const ssize_t count = ::pread(memory, content.data(), content.size(), region.begin);
  content.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return content;
}

}  // namespace

int flip_a_bit_of(const std::string& bytes, pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/mem";
  const FileDescriptor memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!memory.is_open()) throw std::system_error(errno, std::generic_category(), path);
  int flipped = 0;
  for (const Region& region : writable_regions(pid)) {
    const std::string content = read_region(memory.get(), region);
    for (size_t at = content.find(bytes); at != std::string::npos; at = content.find(bytes, at + bytes.size())) {
      const size_t byte = at + bytes.size() / 2;
      const auto changed = static_cast<char>(content[byte] ^ 1);
      if (::pwrite(memory.get(), &changed, 1, region.begin + static_cast<off_t>(byte)) == 1) ++flipped;
    }
  }
  return flipped;
}

}  // namespace narrowcast::testing
