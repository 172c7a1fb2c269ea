// A library to preload that shifts the time of day of a process and leaves the machine's clock alone.
//
// The file named by NARROWCAST_TEST_CLOCK contains the shift in seconds, 8 bytes. Changing the file shifts the clocks
// of all processes that use it, while they run. LibTorch's timed waits use a condition variable and a time of day. A
// wait that begins after a jump is correct. A wait that is in progress during a jump keeps its duration, whereas with a
// real clock it would end early or late.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
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

// Shifts `until` if it is a time of day, and not a time of a clock that starts with the machine.
[[gnu::visibility("default")]] int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                                          const timespec* until) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
  constexpr time_t kThirtyYears = 1'000'000'000;  // s; longer than any machine runs
  static const auto of_the_machine = reinterpret_cast<Wait>(dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"));
  timespec there = *until;
  if (there.tv_sec > kThirtyYears) {
    there.tv_sec -= shift();
  }
  return of_the_machine(condition, mutex, &there);
}

}  // extern "C"
