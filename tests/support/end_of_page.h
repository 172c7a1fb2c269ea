// Memory followed by a page that can be neither read nor written.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <system_error>

namespace narrowcast::test {

// `size` bytes, initially zero, that end where a page without access begins: an access beyond them ends the process.
class EndOfPage {
 public:
  explicit EndOfPage(size_t size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t used = (size + page - 1) / page * page;
    mapped_ = used + page;
    pages_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages_ == MAP_FAILED || mprotect(static_cast<uint8_t*>(pages_) + used, page, PROT_NONE) != 0) {
      throw std::system_error(errno, std::generic_category(), "guarded memory");
    }
    data_ = static_cast<uint8_t*>(pages_) + used - size;
  }
  ~EndOfPage() { munmap(pages_, mapped_); }
  EndOfPage(const EndOfPage&) = delete;
  EndOfPage& operator=(const EndOfPage&) = delete;

  uint8_t* data() { return data_; }

 private:
  size_t mapped_ = 0;
  void* pages_ = nullptr;
  uint8_t* data_ = nullptr;
};

}  // namespace narrowcast::test
