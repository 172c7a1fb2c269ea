#include "tests/support/cuda_on_host/fibre.h"

#include <utility>

// AddressSanitizer's and ThreadSanitizer's runtimes define these; they are null in other builds.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old,
                                                           size_t* size_old);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}

namespace narrowcast::cuda_on_host {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;

thread_local Fibre* running = nullptr;

void before_switch(void** own_stack, const void* bottom, size_t size, void* name) {
  if (__sanitizer_start_switch_fiber != nullptr) __sanitizer_start_switch_fiber(own_stack, bottom, size);
  if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(name, 0);
}

void after_switch(void* own_stack, const void** bottom, size_t* size) {
  if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(own_stack, bottom, size);
}

}  // namespace

Fibre::Fibre() : stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
  if (__tsan_create_fiber != nullptr) fibre_name_ = __tsan_create_fiber(0);
}

Fibre::~Fibre() {
  if (__tsan_destroy_fiber != nullptr) __tsan_destroy_fiber(fibre_name_);
}

void Fibre::start(std::function<void()> body) {
  body_ = std::move(body);
  ended_ = false;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_.get();
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fibre::enter, 0);
}

void Fibre::resume() {
  Fibre* const outer = std::exchange(running, this);
  if (__tsan_get_current_fiber != nullptr) resumer_name_ = __tsan_get_current_fiber();
  void* own_stack = nullptr;
  before_switch(&own_stack, stack_.get(), kStackBytes, fibre_name_);
  swapcontext(&resumer_, &context_);
  after_switch(own_stack, nullptr, nullptr);
  running = outer;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Fibre::yield() {
  void* own_stack = nullptr;
  running->switch_to_resumer(&own_stack);
  after_switch(own_stack, &running->resumer_stack_, &running->resumer_stack_size_);
}

void Fibre::switch_to_resumer(void** own_stack) {
  before_switch(own_stack, resumer_stack_, resumer_stack_size_, resumer_name_);
  swapcontext(&context_, &resumer_);
}

void Fibre::enter() { running->run(); }

void Fibre::run() {
  after_switch(nullptr, &resumer_stack_, &resumer_stack_size_);
  try {
    body_();
  } catch (...) {
    error_ = std::current_exception();
  }
  ended_ = true;
  switch_to_resumer(nullptr);  // Never returns.
}

}  // namespace narrowcast::cuda_on_host
