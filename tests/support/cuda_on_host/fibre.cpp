#include "tests/support/cuda_on_host/fibre.h"

#include <algorithm>
#include <cstdint>
#include <utility>

// narrowcast_switch_stack(&own, other): pushes the registers that a function preserves, puts the running stack's end
// into `own`, and continues where `other` stopped. swapcontext() would also ask the kernel for the signal mask, which
// took half of the time of the tests of kernels.
asm(R"(
.pushsection .text
.p2align 4
.globl narrowcast_switch_stack
.hidden narrowcast_switch_stack
.type narrowcast_switch_stack, @function
narrowcast_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size narrowcast_switch_stack, . - narrowcast_switch_stack
.popsection
)");
extern "C" void narrowcast_switch_stack(void** own, void* other);

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
  // narrowcast_switch_stack pops six registers, and the address where it continues. A function's stack begins 8
  // bytes off a multiple of 16, at the address to which it returns, which enter() never does.
  constexpr size_t kRegisters = 6;
  const auto end = reinterpret_cast<uintptr_t>(stack_.get() + kStackBytes) / 16 * 16;
  auto* const top = reinterpret_cast<uintptr_t*>(end) - (kRegisters + 2);
  std::fill_n(top, kRegisters + 2, uintptr_t{0});
  top[kRegisters] = reinterpret_cast<uintptr_t>(&Fibre::enter);
  stopped_ = top;
}

void Fibre::resume() {
  Fibre* const outer = std::exchange(running, this);
  if (__tsan_get_current_fiber != nullptr) resumer_name_ = __tsan_get_current_fiber();
  void* own_stack = nullptr;
  before_switch(&own_stack, stack_.get(), kStackBytes, fibre_name_);
  narrowcast_switch_stack(&resumer_, stopped_);
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
  narrowcast_switch_stack(&stopped_, resumer_);
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
