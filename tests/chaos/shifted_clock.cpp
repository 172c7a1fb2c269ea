// A library to preload: the time of day that a process sees, without that of the machine.
//
// The file that NARROWCAST_TEST_CLOCK names holds a number of seconds, 8 bytes, by which it is wrong; whoever changes
// the file moves the clocks of all processes that have it, while they run. What the kernel itself does by its time of
// day is not moved: a wait until a point of it, as of a lock, ends too early, or late by as much as the clock jumped,
// so that nothing may depend on one.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

const std::atomic<int64_t>* open_shift() {
  static const std::atomic<int64_t> none = 0;
  const char* const path = std::getenv("NARROWCAST_TEST_CLOCK");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return &none;
  }
  void* const memory = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? &none : static_cast<const std::atomic<int64_t>*>(memory);
}

int64_t shift() {
  static const std::atomic<int64_t>* const seconds = open_shift();
  return *seconds;
}

bool is_time_of_day(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static const auto of_the_machine = reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = of_the_machine(clock, time);
  if (result == 0 && is_time_of_day(clock)) {
    time->tv_sec += shift();
  }
  return result;
}

[[gnu::visibility("default")]] int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now{};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return result;
}

[[gnu::visibility("default")]] time_t time(time_t* result) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) {
    *result = now.tv_sec;
  }
  return now.tv_sec;
}

}  // extern "C"
