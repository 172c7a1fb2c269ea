// A library to preload: the time of day that a process sees, without that of the machine.
//
// The file that NARROWCAST_TEST_CLOCK names holds a number of seconds, 8 bytes, by which it is wrong; whoever changes
// the file moves the clocks of all processes that have it, while they run. A wait for a condition until a time of day,
// which is how LibTorch waits for a while, begins after a jump as it should; one that is under way when the clock jumps
// goes on as if it had not, where a machine's would end early or late.
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

// Until a time of day, unless it is one that only a clock which begins with the machine can show.
[[gnu::visibility("default")]] int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                                          const timespec* until) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
  constexpr time_t kThirtyYears = 1'000'000'000;  // s; no machine runs for so long
  static const auto of_the_machine = reinterpret_cast<Wait>(dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"));
  timespec there = *until;
  if (there.tv_sec > kThirtyYears) {
    there.tv_sec -= shift();
  }
  return of_the_machine(condition, mutex, &there);
}

}  // extern "C"
