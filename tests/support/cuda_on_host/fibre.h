// A function that can stop in its middle and continue later, on the thread that resumes it.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>

namespace narrowcast::cuda_on_host {

// Cannot be copied or moved: its stack points into it. Sanitizers are notified of every switch.
class Fibre {
 public:
  Fibre();
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // The next resume() calls `body`. An unfinished earlier body is dropped: its objects are not destroyed.
  void start(std::function<void()> body);

  // Runs the body until it yields or ends. Throws what the body throws.
  void resume();

  bool ended() const { return ended_; }

  // Called in a body: returns to the caller of resume().
  static void yield();

 private:
  static void enter();
  void run();
  void switch_to_resumer(void** own_stack);

  std::unique_ptr<std::byte[]> stack_;
  std::function<void()> body_;
  std::exception_ptr error_;
  bool ended_ = true;
  // The stacks of the two sides, where they stopped.
  void* stopped_ = nullptr;
  void* resumer_ = nullptr;
  // The handles of the sanitizers for the two sides.
  void* fibre_name_ = nullptr;
  void* resumer_name_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_size_ = 0;
};

}  // namespace narrowcast::cuda_on_host
