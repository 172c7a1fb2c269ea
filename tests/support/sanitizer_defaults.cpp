// Defaults of the sanitizers' run-time libraries, compiled into each test program so that they hold however the program
// is started.
#define NARROWCAST_SANITIZER_HOOK extern "C" __attribute__((visibility("default"), used)) const char*

NARROWCAST_SANITIZER_HOOK __lsan_default_suppressions();
NARROWCAST_SANITIZER_HOOK __lsan_default_suppressions() {
  return "leak:c10d::FlightRecorder\n";  // One event, held by a static object of LibTorch.
}
// A failed allocation returns an error to the program, as without a sanitizer.
NARROWCAST_SANITIZER_HOOK __asan_default_options();
NARROWCAST_SANITIZER_HOOK __asan_default_options() { return "allocator_may_return_null=1"; }
NARROWCAST_SANITIZER_HOOK __ubsan_default_options();
NARROWCAST_SANITIZER_HOOK __ubsan_default_options() { return "print_stacktrace=1"; }
NARROWCAST_SANITIZER_HOOK __tsan_default_options();
NARROWCAST_SANITIZER_HOOK __tsan_default_options() {
  // Tests fork processes that start threads, also after other tests had threads of their own.
  return "ignore_noninstrumented_modules=1:allocator_may_return_null=1:die_after_fork=0";
}
NARROWCAST_SANITIZER_HOOK __tsan_default_suppressions();
NARROWCAST_SANITIZER_HOOK __tsan_default_suppressions() {
  // libstdc++ counts the owners of an exception with atomics, but is not instrumented. A read by one owner before
  // another, the last one, destroys the exception therefore looks like a race.
  //
  // The sockets of a group that has ended are kept until the next call for any group (PerOwner). At the end of a
  // program their thread has therefore ended, but has not been joined.
  return "race:std::__exception_ptr::exception_ptr::_M_release\n"
         "thread:narrowcast::connections::SocketBackend::SocketBackend\n";
}
