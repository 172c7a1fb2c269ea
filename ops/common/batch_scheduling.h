// The scheduling of the threads in which Gloo moves messages.
#pragma once

#include <sched.h>

namespace narrowcast {

// While it lives, threads that this thread starts are scheduled as SCHED_BATCH (sched(7)): when they are woken, they do
// not take the core of a thread that runs. Create Gloo's devices under it. Gloo's thread is woken by a write of another
// rank of the machine, which holds its connection's lock meanwhile. Were the writer to lose its core then, its own Gloo
// thread would poll for the lock until the writer runs again. Without effect for a thread that has another policy than
// the usual one, or where the system forbids the change.
class BatchScheduling {
 public:
  BatchScheduling() : is_set_(::sched_getscheduler(kThisThread) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~BatchScheduling() {
    if (is_set_) set(SCHED_OTHER);
  }
  BatchScheduling(const BatchScheduling&) = delete;
  BatchScheduling& operator=(const BatchScheduling&) = delete;

 private:
  static constexpr pid_t kThisThread = 0;

  static bool set(int policy) {
    const sched_param parameters{};
    return ::sched_setscheduler(kThisThread, policy, &parameters) == 0;
  }

  bool is_set_;
};

}  // namespace narrowcast
