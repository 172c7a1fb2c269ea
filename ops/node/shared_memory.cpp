#include "ops/node/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace narrowcast::node {
namespace {

// Without these a process could take away the pages that another one reads, and end it with SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void throw_system_error(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

// What the system call `what` returned, which is negative if it failed.
int checked(int result, const std::string& what) {
  if (result < 0) {
    throw_system_error(errno, what);
  }
  return result;
}

// A larger file is not only refused: the signal that comes with it ends processes that do not ignore it.
void check_size_limit(int64_t bytes) {
  rlimit limit{};
  checked(::getrlimit(RLIMIT_FSIZE, &limit), "the limit of the size of files");
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    throw_system_error(EFBIG, "shared memory of " + std::to_string(bytes) + " bytes (the size of files is limited to " +
                                  std::to_string(limit.rlim_cur) + ")");
  }
}

// Where vm.memfd_noexec is 2 the system only gives files that say that nobody will execute them, which kernels before
// 6.3 do not know.
int create_file() {
  constexpr unsigned kNoExecution = 8;  // MFD_NOEXEC_SEAL, which older headers lack.
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int file = ::memfd_create("narrowcast", kFlags | kNoExecution);
  return file >= 0 || errno != EINVAL ? file : ::memfd_create("narrowcast", kFlags);
}

}  // namespace

SharedMemory SharedMemory::create(int64_t bytes) {
  check_size_limit(bytes);
  Descriptor descriptor(checked(create_file(), "memfd_create"));
  checked(::fchmod(descriptor.number(), S_IRUSR | S_IWUSR), "fchmod of shared memory");
  checked(::ftruncate(descriptor.number(), bytes), "shared memory of " + std::to_string(bytes) + " bytes");
  checked(::fcntl(descriptor.number(), F_ADD_SEALS, kSeals), "F_ADD_SEALS of shared memory");
  return SharedMemory(std::move(descriptor), bytes);
}

SharedMemory SharedMemory::open(Descriptor descriptor) {
  const int seals = checked(::fcntl(descriptor.number(), F_GET_SEALS), "F_GET_SEALS of shared memory");
  if ((seals & kSeals) != kSeals) {
    throw_system_error(EINVAL, "shared memory that can be resized");
  }
  struct stat status {};
  checked(::fstat(descriptor.number(), &status), "fstat of shared memory");
  const int64_t bytes = status.st_size;
  return SharedMemory(std::move(descriptor), bytes);
}

SharedMemory::SharedMemory(Descriptor descriptor, int64_t bytes) : descriptor_(std::move(descriptor)), bytes_(bytes) {
  void* const address = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                               descriptor_.number(), 0);
  if (address == MAP_FAILED) {
    throw_system_error(errno, "mmap of " + std::to_string(bytes) + " bytes of shared memory");
  }
  data_ = static_cast<std::byte*>(address);
  // Only advice: whether the kernel takes it changes nothing but time and the size of core files.
  static_cast<void>(::madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE));
  static_cast<void>(::madvise(address, static_cast<size_t>(bytes), MADV_DONTDUMP));
}

void SharedMemory::give_back(int64_t begin, int64_t bytes) const {
  if (bytes > 0) {
    checked(::madvise(data_ + begin, static_cast<size_t>(bytes), MADV_REMOVE), "MADV_REMOVE of shared memory");
  }
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      bytes_(std::exchange(other.bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    ::munmap(data_, static_cast<size_t>(bytes_));
  }
}

}  // namespace narrowcast::node
